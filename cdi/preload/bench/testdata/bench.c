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
 *                                to its end, with this one's LD_PRELOAD or without
 *   bench hold <bytes>           allocates, says so, and waits for stdin to end
 *
 * Prints, in ns, the median of many short batches of bare calls, of as many that
 * the library wraps, and of the differences: a batch that was interrupted is
 * an outlier, and the median does not see it.
 */
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../src/elfsym.c"
#include "../../src/functions.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);

#define BATCHES 1001
#define CALLS 50

/* The calls that are measured, from the driver itself or as the preload library
 * has wrapped them. Without the library they are the same. */
struct side {
	__typeof__(cuMemAlloc_v2) *alloc;
	__typeof__(cuMemFree_v2) *free;
	__typeof__(cuMemGetInfo_v2) *info;
	__typeof__(cuLaunchKernel) *launch;
	CUdeviceptr *live;
	unsigned long live_count;
	uint64_t random;
};

static struct side bare, wrapped;
static size_t size;

static void die(const char *what)
{
	fprintf(stderr, "bench: %s\n", what);
	exit(1);
}

/* What the driver itself has under that name: dlsym may be wrapped too. */
static void *driver_own(void *driver, const char *name)
{
	void *found = find_in(driver, name); /* glibc's handles are link maps */

	if (!found)
		die(name);
	return found;
}

static void load(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuCtxSetCurrent) *set_current;
	__typeof__(cuInit) *init;
	CUcontext context;

	if (!driver)
		die(dlerror());
	wrapped.alloc = dlsym(driver, "cuMemAlloc_v2");
	wrapped.free = dlsym(driver, "cuMemFree_v2");
	wrapped.info = dlsym(driver, "cuMemGetInfo_v2");
	wrapped.launch = dlsym(driver, "cuLaunchKernel");
	bare.alloc = driver_own(driver, "cuMemAlloc_v2");
	bare.free = driver_own(driver, "cuMemFree_v2");
	bare.info = driver_own(driver, "cuMemGetInfo_v2");
	bare.launch = driver_own(driver, "cuLaunchKernel");
	if ((wrapped.alloc == bare.alloc) != !getenv("LD_PRELOAD"))
		die("LD_PRELOAD and what is wrapped do not agree");
	init = dlsym(driver, "cuInit");
	retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	set_current = dlsym(driver, "cuCtxSetCurrent");
	if (init(0) || retain(&context, 0) || set_current(context))
		die("no device");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void alloc_free(struct side *s)
{
	CUdeviceptr pointer;

	if (s->alloc(&pointer, size) || s->free(pointer))
		die("an allocation failed");
}

static void replace_any(struct side *s)
{
	CUdeviceptr *any;

	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	any = &s->live[s->random % s->live_count];
	if (s->free(*any) || s->alloc(any, size))
		die("an allocation failed");
}

static void make_live(struct side *s, unsigned long count)
{
	s->random = 88172645463325252ull;
	s->live = calloc(count + 1, sizeof(*s->live));
	for (s->live_count = 0; s->live_count < count; s->live_count++)
		if (s->alloc(&s->live[s->live_count], size))
			die("the card is full");
}

static void info(struct side *s)
{
	size_t available, total;

	if (s->info(&available, &total))
		die("cuMemGetInfo failed");
}

static void launch(struct side *s)
{
	if (s->launch((CUfunction)(uintptr_t)4096, 128, 1, 1, 256, 1, 1, 0,
		      NULL, NULL, NULL))
		die("a launch failed");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double start(char *const *environment)
{
	char *arguments[] = { "bench", "nothing", NULL };
	double begin = now();
	pid_t child;
	int status;

	if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments,
			environment) ||
	    waitpid(child, &status, 0) < 0 || status)
		die("a process did not start");
	return now() - begin;
}

static double median(double *values)
{
	qsort(values, BATCHES, sizeof(*values), compare);
	return values[BATCHES / 2];
}

static double without[BATCHES], with[BATCHES], added[BATCHES];

static void print(void)
{
	printf("%.1f %.1f %.1f\n", median(without), median(with),
	       median(added));
}

static void measure_starts(void)
{
	static char preload[4096 + sizeof("LD_PRELOAD=")];
	char *nothing[] = { NULL }, *library[] = { NULL, NULL };

	if (getenv("LD_PRELOAD")) {
		snprintf(preload, sizeof(preload), "LD_PRELOAD=%s",
			 getenv("LD_PRELOAD"));
		library[0] = preload;
	}
	for (int i = 0; i < BATCHES; i++) {
		without[i] = start(nothing);
		with[i] = start(library);
		added[i] = with[i] - without[i];
	}
	print();
}

static double batch(void (*call)(struct side *), struct side *s)
{
	double start = now();

	for (int i = 0; i < CALLS; i++)
		call(s);
	return (now() - start) / CALLS;
}

/* In turn, so that whatever slows the machine slows both. */
static void measure(void (*call)(struct side *), useconds_t rest)
{
	for (int b = -10; b < BATCHES; b++) {
		int at = b < 0 ? 0 : b;

		without[at] = batch(call, &bare);
		with[at] = batch(call, &wrapped);
		added[at] = with[at] - without[at];
		if (rest)
			usleep(rest);
	}
	print();
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
		unsigned long count = strtoul(argv[2], NULL, 10);

		size = strtoul(argv[3], NULL, 10);
		make_live(&bare, count);
		make_live(&wrapped, count);
		measure(count ? replace_any : alloc_free, 0);
	} else if (argc == 2 && !strcmp(argv[1], "info")) {
		measure(info, 0);
	} else if (argc == 2 && !strcmp(argv[1], "launch")) {
		measure(launch, 200);
	} else if (argc == 3 && !strcmp(argv[1], "hold")) {
		if (wrapped.alloc(&kept, strtoul(argv[2], NULL, 10)))
			die("the card is full");
		puts("held");
		fflush(stdout);
		while (getchar() != EOF)
			;
	} else {
		die("usage: bench alloc <live> <bytes> | info | launch | start | hold <bytes>");
	}
	return 0;
}
