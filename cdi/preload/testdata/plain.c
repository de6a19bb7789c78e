/* A program without CUDA prints everything about itself that a library could
 * have changed. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static void show_descriptors(void)
{
	char path[64], target[4096];

	for (int fd = 0; fd < 4096; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 0 && fd > 2)
			printf("fd %d %.*s\n", fd, (int)n, target);
	}
}

static void show_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int n = -2;

	while (tasks && readdir(tasks))
		n++;
	closedir(tasks);
	printf("threads %d\n", n);
}

int main(void)
{
	int before = errno;
	mode_t mask = umask(0);

	printf("errno %d umask %o\n", before, (unsigned)mask);
	for (int s = 1; s < 65; s++) {
		struct sigaction action;

		if (sigaction(s, NULL, &action) == 0 &&
		    action.sa_handler != SIG_DFL)
			printf("signal %d\n", s);
	}
	show_descriptors();
	show_threads();
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "LD_", 3) != 0)
			puts(*e);
	for (int i = 0; i < 100; i++) {
		void *p = malloc((size_t)i * 1000);

		free(p);
	}
	return 0;
}
