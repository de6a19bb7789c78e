/* What a process can tell of itself. */
#include "process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t process_namespace(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* Field 22 of /proc/self/stat; the command before it may hold anything. */
uint64_t process_start_ticks(void)
{
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	char *at = strrchr(text, ')');
	for (int field = 2; at != NULL && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at == NULL ? 0 : strtoull(at, NULL, 10);
}

void process_command(char command[16])
{
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, command, 15);

	command[n < 0 ? 0 : n] = '\0';
	command[strcspn(command, "\n")] = '\0';
	if (fd >= 0)
		close(fd);
}
