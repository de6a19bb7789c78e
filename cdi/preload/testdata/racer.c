/*
 * Allocates and frees at random, in several threads.
 *
 *   racer <threads> <rounds> <most> <MiB> <small>
 *
 * Each thread holds at most <most> allocations of <MiB>, and with <small> set
 * makes and frees a small one in every round besides. Prints how many of each
 * were refused. Then it takes what is left in pieces of 2 MiB, says how many,
 * and keeps them until stdin ends.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../src/functions.h"

CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);

static struct {
	__typeof__(cuInit) *init;
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuCtxSetCurrent) *set_current;
	__typeof__(cuMemAlloc_v2) *alloc;
	__typeof__(cuMemFree_v2) *free;
} cuda;

static unsigned long rounds, most, large_bytes, use_small;
static unsigned long large_refused, small_refused, odd;
static CUcontext context;

static void load(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (!driver)
		exit(3);
	cuda.init = dlsym(driver, "cuInit");
	cuda.retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	cuda.set_current = dlsym(driver, "cuCtxSetCurrent");
	cuda.alloc = dlsym(driver, "cuMemAlloc_v2");
	cuda.free = dlsym(driver, "cuMemFree_v2");
}

static void count(CUresult result, unsigned long *refused)
{
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		__atomic_fetch_add(refused, 1, __ATOMIC_RELAXED);
	else if (result != CUDA_SUCCESS)
		__atomic_fetch_add(&odd, 1, __ATOMIC_RELAXED);
}

static void *race(void *seed_pointer)
{
	unsigned seed = *(unsigned *)seed_pointer;
	CUdeviceptr held[64], small;
	unsigned long n = 0;
	CUresult result;

	cuda.set_current(context);
	for (unsigned long i = 0; i < rounds; i++) {
		if (n < most && (n == 0 || rand_r(&seed) % 2)) {
			result = cuda.alloc(&held[n], large_bytes);
			count(result, &large_refused);
			n += result == CUDA_SUCCESS;
		} else {
			count(cuda.free(held[--n]), &odd);
		}
		if (!use_small)
			continue;
		result = cuda.alloc(&small, 4096);
		count(result, &small_refused);
		if (result == CUDA_SUCCESS)
			count(cuda.free(small), &odd);
	}
	while (n > 0)
		count(cuda.free(held[--n]), &odd);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned long threads, taken = 0;
	unsigned seeds[64];
	pthread_t ids[64];
	CUdeviceptr pointer;

	if (argc != 6)
		return 3;
	threads = strtoul(argv[1], NULL, 10);
	rounds = strtoul(argv[2], NULL, 10);
	most = strtoul(argv[3], NULL, 10);
	large_bytes = strtoul(argv[4], NULL, 10) << 20;
	use_small = strtoul(argv[5], NULL, 10);
	load();
	if (cuda.init(0) || cuda.retain(&context, 0) ||
	    cuda.set_current(context))
		return 3;
	for (unsigned long i = 0; i < threads; i++) {
		seeds[i] = (unsigned)getpid() * 64 + (unsigned)i;
		pthread_create(&ids[i], NULL, race, &seeds[i]);
	}
	for (unsigned long i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("%lu %lu %lu\n", large_refused, small_refused, odd);
	fflush(stdout);
	if (getchar() == EOF)
		return 0;
	while (cuda.alloc(&pointer, 2 << 20) == CUDA_SUCCESS)
		taken++;
	printf("%lu\n", taken);
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
