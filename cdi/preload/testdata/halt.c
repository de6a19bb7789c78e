/*
 * Stops itself in the middle of a call: the driver takes its own lock by fcntl,
 * which is ours here. At that moment the library has charged what is asked for,
 * or has yet to give back what is freed, and the driver has done nothing.
 *
 *   halt alloc|free
 *
 * Holds 4 MiB, stops in allocating or freeing 8 MiB more, and once continued
 * prints the result and waits for the end of stdin.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"

static bool stop_next;

int fcntl(int fd, int command, ...)
{
	void *argument;
	va_list list;

	va_start(list, command);
	argument = va_arg(list, void *);
	va_end(list);
	if (stop_next && command == F_SETLKW) {
		stop_next = false;
		raise(SIGSTOP);
	}
	return (int)syscall(SYS_fcntl, fd, command, argument);
}

int main(int argc, char **argv)
{
	bool freeing = argc > 1 && !strcmp(argv[1], "free");
	CUdeviceptr first, second;
	CUresult result;

	driver_load();
	driver_init();
	if (cuda.cuMemAlloc_v2(&first, 4 << 20) ||
	    (freeing && cuda.cuMemAlloc_v2(&second, 8 << 20)))
		return 3;
	stop_next = true;
	result = freeing ? cuda.cuMemFree_v2(second)
			 : cuda.cuMemAlloc_v2(&second, 8 << 20);
	printf("%d\n", (int)result);
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
