#include <string.h>

#include "say.h"
#include "sys.h"

static size_t append(char *line, size_t used, size_t size, const char *text)
{
	size_t n = strlen(text);

	if (n > size - used)
		n = size - used;
	memcpy(line + used, text, n);
	return used + n;
}

void aq_say_parts(const char *const *parts)
{
	AQ_KEEP_ERRNO;
	char line[512];
	size_t used = append(line, 0, sizeof(line) - 1, "aliquot: ");

	for (; *parts; parts++)
		used = append(line, used, sizeof(line) - 1, *parts);
	line[used++] = '\n';
	syscall(SYS_write, STDERR_FILENO, line, used);
}
