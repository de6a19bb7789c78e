/*
 * Measures calls of the CUDA driver API in this process.
 *
 *   bench alloc <live> <bytes>   ns of one cuMemAlloc and one cuMemFree; with
 *                                allocations of that size alive, it is any of
 *                                them that is freed and made again
 *   bench info                   ns of one cuMemGetInfo
 *   bench launch                 ns of one cuLaunchKernel, with rests between the
 *                                batches, so that a budget is never used up
 *   bench start                  ns from the start of a process that does nothing
 *                                to its end
 *   bench hold <bytes>           allocates, says so, and waits for stdin to end
 *
 * Prints the median of many short batches: a batch that was interrupted is an
 * outlier, and the median does not see it.
 */
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../src/functions.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);

#define BATCHES 1001
#define CALLS 50

static struct {
	__typeof__(cuInit) *init;
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuCtxSetCurrent) *set_current;
	__typeof__(cuMemAlloc_v2) *alloc;
	__typeof__(cuMemFree_v2) *free;
	__typeof__(cuMemGetInfo_v2) *info;
	__typeof__(cuLaunchKernel) *launch;
} cuda;

static void die(const char *what)
{
	fprintf(stderr, "bench: %s\n", what);
	exit(1);
}

static void load(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext context;

	if (!driver)
		die(dlerror());
	cuda.init = dlsym(driver, "cuInit");
	cuda.retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	cuda.set_current = dlsym(driver, "cuCtxSetCurrent");
	cuda.alloc = dlsym(driver, "cuMemAlloc_v2");
	cuda.free = dlsym(driver, "cuMemFree_v2");
	cuda.info = dlsym(driver, "cuMemGetInfo_v2");
	cuda.launch = dlsym(driver, "cuLaunchKernel");
	if (cuda.init(0) || cuda.retain(&context, 0) ||
	    cuda.set_current(context))
		die("no device");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static size_t size;
static CUdeviceptr *live;
static unsigned long live_count;

static void alloc_free(void)
{
	CUdeviceptr pointer;

	if (cuda.alloc(&pointer, size) || cuda.free(pointer))
		die("an allocation failed");
}

static void replace_any(void)
{
	static uint64_t random = 88172645463325252ull;
	CUdeviceptr *any;

	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	any = &live[random % live_count];
	if (cuda.free(*any) || cuda.alloc(any, size))
		die("an allocation failed");
}

static void make_live(unsigned long count)
{
	live = calloc(count + 1, sizeof(*live));
	for (live_count = 0; live_count < count; live_count++)
		if (cuda.alloc(&live[live_count], size))
			die("the card is full");
}

static void info(void)
{
	size_t available, total;

	if (cuda.info(&available, &total))
		die("cuMemGetInfo failed");
}

static void launch(void)
{
	if (cuda.launch((CUfunction)(uintptr_t)4096, 128, 1, 1, 256, 1, 1, 0,
			NULL, NULL, NULL))
		die("a launch failed");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

extern char **environ;

static void start(void)
{
	char *arguments[] = { "bench", "nothing", NULL };
	pid_t child;
	int status;

	if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments,
			environ) ||
	    waitpid(child, &status, 0) < 0 || status)
		die("a process did not start");
}

static void measure_starts(void)
{
	static double starts[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		double begin = now();

		start();
		starts[i] = now() - begin;
	}
	qsort(starts, BATCHES, sizeof(starts[0]), compare);
	printf("%.1f\n", starts[BATCHES / 2]);
}

static void measure(void (*call)(void), useconds_t rest)
{
	static double batches[BATCHES];

	for (int i = 0; i < 10 * CALLS; i++)
		call();
	for (int b = 0; b < BATCHES; b++) {
		double start = now();

		for (int i = 0; i < CALLS; i++)
			call();
		batches[b] = (now() - start) / CALLS;
		if (rest)
			usleep(rest);
	}
	qsort(batches, BATCHES, sizeof(batches[0]), compare);
	printf("%.1f\n", batches[BATCHES / 2]);
}

int main(int argc, char **argv)
{
	CUdeviceptr kept;

	if (argc == 2 && !strcmp(argv[1], "nothing"))
		return 0;
	if (argc == 2 && !strcmp(argv[1], "start")) {
		measure_starts();
		return 0;
	}
	load();
	if (argc == 4 && !strcmp(argv[1], "alloc")) {
		size = strtoul(argv[3], NULL, 10);
		make_live(strtoul(argv[2], NULL, 10));
		measure(live_count ? replace_any : alloc_free, 0);
	} else if (argc == 2 && !strcmp(argv[1], "info")) {
		measure(info, 0);
	} else if (argc == 2 && !strcmp(argv[1], "launch")) {
		measure(launch, 200);
	} else if (argc == 3 && !strcmp(argv[1], "hold")) {
		if (cuda.alloc(&kept, strtoul(argv[2], NULL, 10)))
			die("the card is full");
		puts("held");
		fflush(stdout);
		while (getchar() != EOF)
			;
	} else {
		die("usage: bench alloc <live> <bytes> | info | hold <bytes>");
	}
	return 0;
}
