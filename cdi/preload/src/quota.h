/* The text of a share's quota file. */
#ifndef AQ_QUOTA_H
#define AQ_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AQ_UUID_TEXT_MAX 64

struct aq_quota {
	uint8_t gpu[16];
	uint64_t memory_bytes;
	uint32_t core_percent; /* 0: best effort */
	bool core_burst;       /* idle cores are lent */
	int32_t priority;
};

/* NULL, or what is wrong with the text. */
const char *aq_quota_parse(struct aq_quota *quota, const char *text,
			   size_t size);

/* "GPU-" or "MIG-" and 32 hexadecimal digits in the usual groups. */
bool aq_uuid_parse(uint8_t uuid[16], const char *text, size_t size);

#endif
