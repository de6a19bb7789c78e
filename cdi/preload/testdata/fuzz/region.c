/*
 * The readers of a share's three files, with any content, and charging on a
 * region in which anything is written meanwhile.
 *
 * The first byte says which files the input makes: 1 quota, 2 agent, 4 usage;
 * those not named are good ones. The second is by how many words the input is
 * spread over the region once it is mapped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../src/share.c"

#include "../../src/region.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define UUID "GPU-00000001-aaaa-bbbb-cccc-0123456789ab"
#define ENTRY AQ_SHARES_DIR "/" UUID ".one"
#define LIMIT 64

/* Of lookup.c, which is not here: there is no driver. */
struct aq_real aq_real;
bool aq_cuda_bound, aq_nvml_bound;

bool aq_bind_cuda(void)
{
	return false;
}

bool aq_bind_nvml(void)
{
	return false;
}

void aq_lookup_forked(void)
{
}

/* Of say.c: much is wrong here. */
void aq_say_parts(const char *const *parts)
{
	(void)parts;
}

static const char good_quota[] = "version 1\ngpu " UUID
				 "\nmemory_bytes 67108864\ncore_percent 0\n"
				 "core_policy Fixed\npriority 0\n";

static struct aq_agent good_agent = { .magic = AQ_AGENT_MAGIC, .abi = AQ_ABI };

static struct aq_usage good_usage = {
	.header = { .magic = AQ_USAGE_MAGIC,
		    .abi = AQ_ABI,
		    .hdr_size = AQ_HEADER_SIZE,
		    .slot_size = AQ_SLOT_SIZE,
		    .nslots = AQ_SLOT_COUNT },
};

static void write_file(const char *path, const void *data, size_t size)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	close(fd);
}

/* The input lies over the beginning of a good file of the right size, or is all
 * of it. */
static void write_laid(const char *path, const void *good, size_t whole,
		       const uint8_t *data, size_t size)
{
	static uint8_t file[AQ_USAGE_SIZE];

	memcpy(file, good, whole);
	memcpy(file, data, size < whole ? size : whole);
	write_file(path, file, size % 7 == 6 ? size % whole : whole);
}

static void write_files(unsigned which, const uint8_t *data, size_t size)
{
	if (which & 1)
		write_file(ENTRY "/quota", data, size);
	else
		write_file(ENTRY "/quota", good_quota, sizeof(good_quota) - 1);
	write_laid(ENTRY "/agent", &good_agent, sizeof(good_agent), data,
		   which & 2 ? size : 0);
	write_laid(ENTRY "/usage", &good_usage, sizeof(good_usage), data,
		   which & 4 ? size : 0);
}

/* As in a new process. */
static void forget(void)
{
	for (unsigned i = 0; i < AQ_SHARES_MAX; i++) {
		struct aq_share *share = &aq_shares[i];

		if (share->agent)
			munmap((void *)(uintptr_t)share->agent, AQ_AGENT_SIZE);
		if (share->region) {
			munmap(share->region, AQ_USAGE_SIZE);
			close(share->fd);
		}
	}
	memset(aq_shares, 0, sizeof(aq_shares));
	memset(aq_gpus, 0, sizeof(aq_gpus));
	loaded = false;
}

/* Words of the input at places that it names. */
static void scribble(unsigned words, const uint8_t *data, size_t size)
{
	uint8_t *region = (uint8_t *)aq_shares[0].region;
	uint8_t *agent = (uint8_t *)(uintptr_t)aq_shares[0].agent;

	if (!region || mprotect(agent, AQ_AGENT_SIZE, PROT_READ))
		return;
	for (; words > 0 && size >= 10; words--, data += 10, size -= 10) {
		size_t at = (size_t)data[0] << 8 | data[1];

		/* Mostly where it matters: the header and a few slots. Our
		 * own slot seldom: for what seems to be pending in it we
		 * would wait a second. */
		at = at % 3 ? at % (AQ_HEADER_SIZE + 4096)
			    : at * 2 % (AQ_USAGE_SIZE - 8);
		at -= at % 8;
		if (at != AQ_HEADER_SIZE || data[2] == 7)
			memcpy(region + at, data + 2, 8);
	}
}

static void use(struct aq_gpu *gpu, uint32_t units)
{
	struct aq_agent_view view;
	struct aq_hold hold;

	if (aq_reserve(&hold, gpu, units)) {
		if (gpu->closed || units > gpu->limit)
			abort();
		aq_commit(&hold, units / 2);
		aq_release(gpu, units / 2);
	}
	aq_used(gpu);
	for (unsigned i = 0; i < gpu->share_count; i++) {
		struct aq_share *share = aq_gpu_share(gpu, i);

		aq_agent_read(share, &view);
		aq_agent_overhead(share, units * 100, units);
		aq_region_reap(share);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t uuid[16];
	struct aq_gpu *gpu;

	if (size < 2 || size > AQ_QUOTA_BYTES_MAX * 2)
		return 0;
	mkdir(AQ_SHARES_DIR, 0700);
	mkdir(ENTRY, 0700);
	write_files(data[0], data + 2, size - 2);
	aq_uuid_parse(uuid, UUID, sizeof(UUID) - 1);
	gpu = aq_gpu_by_uuid(uuid);
	if (!gpu)
		abort(); /* not limited, though it has a share */
	for (uint32_t units = 1; units < 3 * LIMIT; units = units * 2 + 1) {
		use(gpu, units);
		scribble(data[1] % 16, data + 2, size - 2);
	}
	forget();
	return 0;
}
