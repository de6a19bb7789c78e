/* Prints every constant, offset and size of abi.h as "name value". */
#include <stdio.h>

#include "../abi.h"

#define VALUE(name) printf("%s %llu\n", #name, (unsigned long long)(name))
#define SIZE(type) \
	printf("sizeof(%s) %llu\n", #type, \
	       (unsigned long long)sizeof(struct type))
#define OFFSET(type, field) \
	printf("%s.%s %llu\n", #type, #field, \
	       (unsigned long long)__builtin_offsetof(struct type, field))
#define TEXT(name) printf("%s %s\n", #name, name)

static void print_quota(void)
{
	VALUE(AQ_QUOTA_VERSION);
	VALUE(AQ_QUOTA_BYTES_MAX);
	TEXT(AQ_KEY_VERSION);
	TEXT(AQ_KEY_GPU);
	TEXT(AQ_KEY_MEMORY);
	TEXT(AQ_KEY_CORE_PERCENT);
	TEXT(AQ_KEY_CORE_POLICY);
	TEXT(AQ_KEY_PRIORITY);
}

static void print_constants(void)
{
	VALUE(AQ_USAGE_MAGIC);
	VALUE(AQ_AGENT_MAGIC);
	VALUE(AQ_ABI);
	VALUE(AQ_HEADER_SIZE);
	VALUE(AQ_SLOT_SIZE);
	VALUE(AQ_SLOT_COUNT);
	VALUE(AQ_USAGE_SIZE);
	VALUE(AQ_AGENT_SIZE);
	VALUE(AQ_LOCK_BASE);
	VALUE(AQ_LOCK_REGION);
	VALUE(AQ_UNIT_SHIFT);
	VALUE(AQ_FIELD_BITS);
	VALUE(AQ_FIELD_MAX);
	VALUE(AQ_PENDING_SHIFT);
	VALUE(AQ_GENERATION_SHIFT);
	VALUE(AQ_GENERATION_MAX);
	VALUE(AQ_AGENT_FRESH_NS);
	VALUE(AQ_AGENT_LENT_NS);
}

static void print_usage(void)
{
	SIZE(aq_usage);
	SIZE(aq_usage_header);
	OFFSET(aq_usage_header, magic);
	OFFSET(aq_usage_header, abi);
	OFFSET(aq_usage_header, hdr_size);
	OFFSET(aq_usage_header, slot_size);
	OFFSET(aq_usage_header, nslots);
	OFFSET(aq_usage_header, hi);
	OFFSET(aq_usage_header, boot_id_hash);
	OFFSET(aq_usage_header, created_mono);
	OFFSET(aq_usage_header, gate_until);
	OFFSET(aq_usage_header, tat);
	OFFSET(aq_usage_header, tat_k);
	OFFSET(aq_usage_header, denied_allocs);
	OFFSET(aq_usage_header, throttle_ns);
	OFFSET(aq_usage_header, launches);
	OFFSET(aq_usage_header, charged_ns);
	SIZE(aq_usage_slot);
	OFFSET(aq_usage_slot, charge);
	OFFSET(aq_usage_slot, peak);
	OFFSET(aq_usage_slot, allocs);
	OFFSET(aq_usage_slot, denied);
	OFFSET(aq_usage_slot, pools);
	OFFSET(aq_usage_slot, ctx);
	OFFSET(aq_usage_slot, throttled_ns);
	OFFSET(aq_usage_slot, launches);
	OFFSET(aq_usage_slot, t_last);
	OFFSET(aq_usage_slot, pid);
	OFFSET(aq_usage_slot, pidns_ino);
	OFFSET(aq_usage_slot, start_ticks);
}

static void print_agent(void)
{
	SIZE(aq_agent);
	OFFSET(aq_agent, magic);
	OFFSET(aq_agent, abi);
	OFFSET(aq_agent, seq);
	OFFSET(aq_agent, t_mono);
	OFFSET(aq_agent, k_permille);
	OFFSET(aq_agent, util_permille);
	OFFSET(aq_agent, actual_bytes);
	OFFSET(aq_agent, core_permille);
	OFFSET(aq_agent, context_mib);
	OFFSET(aq_agent, slot_overhead_mib);
	OFFSET(aq_agent, slot_generation);
}

int main(void)
{
	print_quota();
	print_constants();
	print_usage();
	print_agent();
	return 0;
}
