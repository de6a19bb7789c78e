/*
 * Kills processes in the middle of allocating.
 *
 *   storm <workers> <kills> <most> <MiB>
 *
 * Each worker allocates and frees at random, at most <most> pieces of <MiB>, and
 * counts its rounds where the parent sees them. The parent kills one after
 * another, waits for its end and starts a new one. Prints how many allocations
 * were refused, and how many workers stood still for ten seconds.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../src/functions.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);

#define WORKERS_MAX 64

static struct {
	unsigned long rounds[WORKERS_MAX];
	unsigned long refused, odd;
} *shared;

static unsigned long most, bytes;

static void work(int me)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(cuInit) *init = dlsym(driver, "cuInit");
	__typeof__(cuDevicePrimaryCtxRetain) *retain =
		dlsym(driver, "cuDevicePrimaryCtxRetain");
	__typeof__(cuCtxSetCurrent) *set = dlsym(driver, "cuCtxSetCurrent");
	__typeof__(cuMemAlloc_v2) *alloc = dlsym(driver, "cuMemAlloc_v2");
	__typeof__(cuMemFree_v2) *release = dlsym(driver, "cuMemFree_v2");
	unsigned seed = (unsigned)getpid();
	CUdeviceptr held[64];
	CUcontext context;
	unsigned long n = 0;

	if (init(0) || retain(&context, 0) || set(context))
		_exit(3);
	for (;;) {
		CUresult result;

		if (n < most && (n == 0 || rand_r(&seed) % 2)) {
			result = alloc(&held[n], bytes);
			n += result == CUDA_SUCCESS;
		} else {
			result = release(held[--n]);
		}
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			__atomic_fetch_add(&shared->refused, 1,
					   __ATOMIC_RELAXED);
		else if (result != CUDA_SUCCESS)
			__atomic_fetch_add(&shared->odd, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&shared->rounds[me], 1, __ATOMIC_RELAXED);
	}
}

static pid_t start(int me)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		work(me);
	}
	return pid;
}

static void nap(long ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

/* Whether the worker does some more rounds within ten seconds. */
static int moves(int worker)
{
	unsigned long before = __atomic_load_n(&shared->rounds[worker],
					       __ATOMIC_RELAXED);

	for (int i = 0; i < 10000; i++) {
		if (__atomic_load_n(&shared->rounds[worker],
				    __ATOMIC_RELAXED) > before + 2)
			return 1;
		nap(1000000);
	}
	return 0;
}

int main(int argc, char **argv)
{
	unsigned long workers, kills, stuck = 0;
	pid_t pids[WORKERS_MAX];

	if (argc != 5)
		return 3;
	workers = strtoul(argv[1], NULL, 10);
	kills = strtoul(argv[2], NULL, 10);
	most = strtoul(argv[3], NULL, 10);
	bytes = strtoul(argv[4], NULL, 10) << 20;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (unsigned long i = 0; i < workers; i++)
		pids[i] = start((int)i);
	srand(1);
	for (unsigned long i = 0; i < kills; i++) {
		int victim = (int)((unsigned long)rand() % workers);

		nap(rand() % 2000000);
		kill(pids[victim], SIGKILL);
		waitpid(pids[victim], NULL, 0);
		pids[victim] = start(victim);
	}
	for (unsigned long i = 0; i < workers; i++)
		stuck += !moves((int)i);
	for (unsigned long i = 0; i < workers; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	printf("%lu %lu %lu\n", shared->refused, shared->odd, stuck);
	return 0;
}
