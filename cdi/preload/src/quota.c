#include <string.h>

#include "../abi.h"
#include "quota.h"

/* A piece of the text; not ended by a NUL. */
struct span {
	const char *at;
	size_t size;
};

static bool is(struct span s, const char *text)
{
	return s.size == strlen(text) && memcmp(s.at, text, s.size) == 0;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool aq_uuid_parse(uint8_t uuid[16], const char *text, size_t size)
{
	static const char shape[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
	unsigned digits = 0;

	if (size != 4 + sizeof(shape) - 1 ||
	    (memcmp(text, "GPU-", 4) != 0 && memcmp(text, "MIG-", 4) != 0))
		return false;
	text += 4;
	for (size_t i = 0; i < sizeof(shape) - 1; i++) {
		int digit = hex_digit(text[i]);

		if (shape[i] == '-') {
			if (text[i] != '-')
				return false;
			continue;
		}
		if (digit < 0)
			return false;
		if (digits % 2 == 0)
			uuid[digits / 2] = (uint8_t)(digit << 4);
		else
			uuid[digits / 2] |= (uint8_t)digit;
		digits++;
	}
	return true;
}

static bool parse_number(struct span s, uint64_t *number)
{
	uint64_t n = 0;

	if (s.size == 0)
		return false;
	for (size_t i = 0; i < s.size; i++) {
		unsigned digit = (unsigned char)s.at[i] - '0';

		if (digit > 9 || __builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, digit, &n))
			return false;
	}
	*number = n;
	return true;
}

static bool parse_memory(struct aq_quota *quota, struct span value)
{
	return parse_number(value, &quota->memory_bytes);
}

static bool parse_gpu(struct aq_quota *quota, struct span value)
{
	return aq_uuid_parse(quota->gpu, value.at, value.size);
}

static bool parse_core_percent(struct aq_quota *quota, struct span value)
{
	uint64_t n;

	if (!parse_number(value, &n) || n > 100)
		return false;
	quota->core_percent = (uint32_t)n;
	return true;
}

static bool parse_core_policy(struct aq_quota *quota, struct span value)
{
	quota->core_burst = is(value, "Burst");
	return quota->core_burst || is(value, "Fixed");
}

static bool parse_priority(struct aq_quota *quota, struct span value)
{
	bool negative = value.size > 0 && value.at[0] == '-';
	uint64_t n;

	if (negative) {
		value.at++;
		value.size--;
	}
	if (!parse_number(value, &n) || n > INT32_MAX)
		return false;
	quota->priority = negative ? -(int32_t)n : (int32_t)n;
	return true;
}

static bool parse_version(struct aq_quota *quota, struct span value)
{
	uint64_t n;

	(void)quota;
	return parse_number(value, &n) && n == AQ_QUOTA_VERSION;
}

static const struct key {
	const char *name;
	bool (*parse)(struct aq_quota *quota, struct span value);
	const char *missing, *wrong, *doubled;
} keys[] = {
#define KEY(name, parse)                                      \
	{ name, parse, "quota has no " name,                  \
	  "quota has an unknown value of " name,              \
	  "quota has " name " twice" }
	KEY(AQ_KEY_VERSION, parse_version),
	KEY(AQ_KEY_GPU, parse_gpu),
	KEY(AQ_KEY_MEMORY, parse_memory),
	KEY(AQ_KEY_CORE_PERCENT, parse_core_percent),
	KEY(AQ_KEY_CORE_POLICY, parse_core_policy),
	KEY(AQ_KEY_PRIORITY, parse_priority),
#undef KEY
};

#define KEYS (sizeof(keys) / sizeof(keys[0]))

static const char *split_line(struct span line, struct span values[KEYS])
{
	const char *space = memchr(line.at, ' ', line.size);
	struct span key = { line.at, space ? (size_t)(space - line.at) : 0 };

	if (key.size == 0)
		return "quota has a line that is not a key and a value";
	for (size_t i = 0; i < KEYS; i++) {
		if (!is(key, keys[i].name))
			continue;
		if (values[i].at)
			return keys[i].doubled;
		values[i] = (struct span){ space + 1, line.size - key.size - 1 };
	}
	return NULL;
}

/* The version is judged first: of another one nothing else is understood. */
const char *aq_quota_parse(struct aq_quota *quota, const char *text,
			   size_t size)
{
	struct span values[KEYS] = { { NULL, 0 } };
	const char *wrong = NULL;

	if (size == 0)
		return "quota is empty";
	if (text[size - 1] != '\n')
		return "quota is cut short";
	while (size > 0) {
		const char *end = memchr(text, '\n', size);
		struct span line = { text, (size_t)(end - text) };
		const char *why = split_line(line, values);

		wrong = wrong ? wrong : why;
		size -= line.size + 1;
		text = end + 1;
	}
	for (size_t i = 0; i < KEYS; i++) {
		if (!values[i].at)
			return wrong ? wrong : keys[i].missing;
		if (!keys[i].parse(quota, values[i]))
			return keys[i].wrong;
	}
	return wrong;
}
