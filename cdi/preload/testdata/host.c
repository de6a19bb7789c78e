/*
 * A CUDA program that looks, after every call, at everything about itself that
 * a library could have changed, prints it, and ends as it is told.
 *
 *   host <ending> results|state
 *
 * With `state` the calls' results are left out.
 */
#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

extern char **environ;

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);

static bool show_results;

static FILE *state;

static void show_signals(void)
{
	struct itimerval timer;
	sigset_t blocked, pending;
	stack_t stack;

	for (int s = 1; s < 65; s++) {
		struct sigaction action;

		if (sigaction(s, NULL, &action) == 0 &&
		    (action.sa_handler != SIG_DFL || action.sa_flags))
			fprintf(state, " signal %d %p %x", s,
			       (void *)(uintptr_t)(action.sa_handler != SIG_IGN),
			       (unsigned)action.sa_flags);
	}
	sigprocmask(SIG_SETMASK, NULL, &blocked);
	sigpending(&pending);
	for (int s = 1; s < 65; s++)
		if (sigismember(&blocked, s) == 1 ||
		    sigismember(&pending, s) == 1)
			fprintf(state, " blocked %d", s);
	sigaltstack(NULL, &stack);
	getitimer(ITIMER_REAL, &timer);
	fprintf(state, " stack %d timer %d", stack.ss_flags,
	       timer.it_value.tv_sec > 0);
}

static void show_descriptors(void)
{
	char path[64], target[4096];

	for (int fd = 0; fd < 900; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 0 && !strncmp(target, "pipe:", 5))
			n = 5;
		if (n > 0)
			fprintf(state, " fd %d %.*s", fd, (int)n, target);
	}
}

static void show_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int n = -2;

	while (tasks && readdir(tasks))
		n++;
	closedir(tasks);
	fprintf(state, " threads %d", n);
}

static void show_environment(void)
{
	unsigned long sum = 5381;

	for (char **e = environ; *e; e++)
		if (strncmp(*e, "LD_PRELOAD=", 11) != 0)
			for (const char *c = *e; *c; c++)
				sum = sum * 33 + (unsigned char)*c;
	fprintf(state, " environment %lx", sum);
}

static void show_limits(void)
{
	struct rlimit limit;

	for (int i = 0; i < RLIM_NLIMITS; i++)
		if (getrlimit(i, &limit) == 0)
			fprintf(state, " %ld/%ld", (long)limit.rlim_cur,
			       (long)limit.rlim_max);
}

static void show_rest(void)
{
	char text[4096], name[32] = "";
	mode_t mask = umask(0);

	umask(mask);
	prctl(PR_GET_NAME, name);
	fprintf(state, " umask %o cwd %s name %s dumpable %d nice %d locale %s"
	       " children %d",
	       (unsigned)mask, getcwd(text, sizeof(text)), name,
	       prctl(PR_GET_DUMPABLE), getpriority(PRIO_PROCESS, 0),
	       setlocale(LC_ALL, NULL),
	       waitpid(-1, NULL, WNOHANG));
}

/* What it is now, in static memory. */
static const char *look(void)
{
	static char text[1 << 16];

	memset(text, 0, sizeof(text));
	state = fmemopen(text, sizeof(text), "w");
	show_signals();
	show_descriptors();
	show_threads();
	show_environment();
	show_limits();
	show_rest();
	fclose(state);
	return text;
}

/* The state is printed when it is not what it was. */
static void show(const char *call, int result, int error)
{
	static char last[1 << 16];
	const char *said = dlerror(), *now = look();

	printf("%s:", call);
	if (show_results)
		printf(" %d", result);
	printf(" errno %d%s%s\n", error, said ? " dlerror" : "",
	       strcmp(now, last) ? now : "");
	strcpy(last, now);
}

#define CALL(call)                               \
	do {                                     \
		int result_, error_;             \
						 \
		errno = 77;                      \
		result_ = (int)(call);           \
		error_ = errno;                  \
		show(#call, result_, error_);    \
	} while (0)

static void lookups(void)
{
	CALL(dlsym(RTLD_DEFAULT, "qsort") != NULL);
	CALL(dlsym(RTLD_DEFAULT, "cuInit") != NULL);
	driver_load();
	show("driver", 0, 0);
}

static void plain_memory(void)
{
	CUdeviceptr small, large;
	CUcontext context;

	CALL(cuda.cuInit(0));
	CALL(cuda.cuMemAlloc_v2(&large, 4096)); /* no context */
	CALL(cuda.cuDevicePrimaryCtxRetain(&context, 0));
	CALL(cuda.cuCtxSetCurrent(context));
	CALL(cuda.cuMemAlloc_v2(&small, 4096));
	CALL(cuda.cuMemAlloc_v2(&large, 6 << 20));
	CALL(cuda.cuMemAlloc_v2(&large, UINT64_C(64) << 30));
	CALL(cuda.cuMemFree_v2(small));
	CALL(cuda.cuMemFree_v2(small));
}

static void other_memory(void)
{
	CUmemAllocationProp properties = { .type = 1, .location = { 1, 0 } };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;

	CALL(cuda.cuMemAllocAsync(&pointer, 2 << 20, NULL));
	CALL(cuda.cuMemFreeAsync(pointer, NULL));
	CALL(cuda.cuStreamSynchronize(NULL));
	CALL(cuda.cuMemCreate(&handle, 2 << 20, &properties, 0));
	CALL(cuda.cuMemAddressReserve(&pointer, 2 << 20, 0, 0, 0));
	CALL(cuda.cuMemMap(pointer, 2 << 20, 0, handle, 0));
	CALL(cuda.cuMemRelease(handle));
	CALL(cuda.cuMemUnmap(pointer, 2 << 20));
	CALL(cuda.cuMemCreate(&handle, UINT64_C(64) << 30, &properties, 0));
}

static void nvml(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	__typeof__(nvmlInit_v2) *init = dlsym(library, "nvmlInit_v2");
	__typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index =
		dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	__typeof__(nvmlDeviceGetMemoryInfo) *info =
		dlsym(library, "nvmlDeviceGetMemoryInfo");
	nvmlMemory_t memory;
	nvmlDevice_t device;

	CALL(init());
	CALL(by_index(0, &device));
	CALL(info(device, &memory));
}

static void *exit_here(void *unused)
{
	exit(6);
	return unused;
}

static void say_bye(void)
{
	printf("bye\n");
}

static int end(const char *how)
{
	pthread_t thread;

	fflush(stdout);
	if (!strcmp(how, "exit"))
		exit(5);
	if (!strcmp(how, "_exit"))
		_exit(5);
	if (!strcmp(how, "quick_exit"))
		quick_exit(5);
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "signal"))
		raise(SIGTERM);
	if (!strcmp(how, "fault"))
		*(volatile int *)8 = 1;
	if (!strcmp(how, "pthread_exit"))
		pthread_exit(NULL);
	if (!strcmp(how, "thread") &&
	    !pthread_create(&thread, NULL, exit_here, NULL))
		pause();
	return 5;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 3;
	show_results = !strcmp(argv[2], "results");
	show("start", 0, 0);
	/* A host that has all of this in use. */
	signal(SIGUSR1, SIG_IGN);
	umask(027);
	setpriority(PRIO_PROCESS, 0, 1);
	setvbuf(stdout, NULL, _IOFBF, 1 << 20);
	atexit(say_bye);
	at_quick_exit(say_bye);
	show("begin", 0, 0);
	lookups();
	plain_memory();
	other_memory();
	nvml();
	return end(argv[1]);
}
