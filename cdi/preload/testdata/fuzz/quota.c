/* The parsers of text, with any text. */
#include <stdlib.h>

#include "../../src/quota.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy of exactly that size, so that a byte too many is noticed. */
static char *copy_of(const uint8_t *data, size_t size)
{
	char *copy = malloc(size ? size : 1);

	memcpy(copy, data, size);
	return copy;
}

static void check(const struct aq_quota *quota)
{
	if (quota->core_percent > 100 || quota->priority == INT32_MIN)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = copy_of(data, size);
	struct aq_quota quota = { { 0 } };
	uint8_t uuid[16];

	if (!aq_quota_parse(&quota, text, size))
		check(&quota);
	/* A UUID anywhere in it, up to its end. */
	for (size_t i = 0; i < size && i < 64; i++)
		if (aq_uuid_parse(uuid, text + i, size - i) && size - i != 40)
			abort();
	free(text);
	return 0;
}
