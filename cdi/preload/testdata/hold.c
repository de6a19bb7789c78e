/*
 * Many processes that hold something.
 *
 *   hold <processes>
 *
 * Each allocates 2 MiB. Prints how many could, and then, for each line of stdin,
 * ends one of them.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

static pid_t start(int report)
{
	pid_t pid = fork();
	CUdeviceptr pointer;
	CUcontext context;
	char result;

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	result = !cuda.cuInit(0) &&
		 !cuda.cuDevicePrimaryCtxRetain(&context, 0) &&
		 !cuda.cuCtxSetCurrent(context) &&
		 !cuda.cuMemAlloc_v2(&pointer, 2 << 20);
	if (write(report, &result, 1) != 1)
		_exit(3);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	int processes = argc == 2 ? atoi(argv[1]) : 0, pipes[2], held = 0;
	pid_t pids[1024];

	if (processes < 1 || processes > 1024 || pipe(pipes))
		return 3;
	driver_load();
	for (int i = 0; i < processes; i++) {
		char result = 0;

		pids[i] = start(pipes[1]);
		if (pids[i] < 0 || read(pipes[0], &result, 1) != 1)
			return 3;
		held += result;
	}
	printf("%d\n", held);
	fflush(stdout);
	while (processes > 0 && getchar() == '\n') {
		kill(pids[--processes], SIGKILL);
		waitpid(pids[processes], NULL, 0);
		printf("%d\n", processes);
		fflush(stdout);
	}
	return 0;
}
