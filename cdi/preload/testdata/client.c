/*
 * A CUDA program that does what it is told: it reads commands from stdin, one a
 * line, makes the call and answers with its result and what it gave. Pointers,
 * handles and pools are kept under numbers that the commands choose.
 *
 *   client [dlsym|linked|procaddr]
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_functions.h"

static struct {
#define MEMBER(name, base, version) __typeof__(name) *name;
	FUNCTIONS(MEMBER)
#undef MEMBER
} cuda;

#define SLOTS (1 << 18)
static CUdeviceptr pointers[SLOTS];
static CUmemGenericAllocationHandle handles[SLOTS];
static CUmemoryPool pools[64];
static CUstream streams[64];

static void die(const char *what)
{
	fprintf(stderr, "client: %s\n", what);
	exit(3);
}

static void bind_dlsym(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (!driver)
		die(dlerror());
#define BIND(name, base, version) cuda.name = dlsym(driver, #name);
	FUNCTIONS(BIND)
#undef BIND
}

static void bind_procaddr(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(cuGetProcAddress_v2) *get;
	void *found;
	int status;

	get = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
	if (!get)
		die("no cuGetProcAddress_v2");
#define BIND(name, base, version)                                      \
	found = NULL;                                                  \
	if (get(base, &found, version, 1, &status) != 0 || !found)     \
		die("cuGetProcAddress does not know " base);           \
	cuda.name = (__typeof__(name) *)found;
	FUNCTIONS(BIND)
#undef BIND
}

#ifdef LINKED
static void bind_linked(void)
{
#define BIND(name, base, version) cuda.name = name;
	FUNCTIONS(BIND)
#undef BIND
}
#else
static void bind_linked(void)
{
	die("not linked");
}
#endif

static void answer(int result)
{
	printf("%d\n", result);
}

/* Fills with allocations of that size; answers how many, and why it ended. */
static void fill(unsigned long first, unsigned long bytes, unsigned long most)
{
	unsigned long n = 0;
	int result = 0;

	while (n < most &&
	       (result = cuda.cuMemAlloc_v2(&pointers[first + n], bytes)) == 0)
		n++;
	printf("%lu %d\n", n, result);
}

static void info(void)
{
	size_t available = 0, total = 0;
	int result = cuda.cuMemGetInfo_v2(&available, &total);

	printf("%d %zu %zu\n", result, available, total);
}

static void info_null(void)
{
	size_t available = 0, total = 0;
	int first = cuda.cuMemGetInfo_v2(NULL, &total);
	int second = cuda.cuMemGetInfo_v2(&available, NULL);
	int third = cuda.cuMemGetInfo_v2(NULL, NULL);

	printf("%d %d %d %zu %zu\n", first, second, third, available, total);
}

static void nvml_info(unsigned index)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	__typeof__(nvmlInit_v2) *init = dlsym(nvml, "nvmlInit_v2");
	__typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index =
		dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	__typeof__(nvmlDeviceGetMemoryInfo) *get =
		dlsym(nvml, "nvmlDeviceGetMemoryInfo");
	__typeof__(nvmlDeviceGetMemoryInfo_v2) *get2 =
		dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2");
	nvmlMemory_t one = { 0 };
	nvmlMemory_v2_t two = { .version = sizeof(two) | 2 << 24 };
	nvmlDevice_t device;
	int result = init() || by_index(index, &device) || get(device, &one) ||
		     get2(device, &two);

	printf("%d %llu %llu %llu %llu %llu %llu\n", result, one.total,
	       one.used, one.free, two.total, two.used, two.free);
}

static void create(unsigned long slot, size_t bytes, int type, int id)
{
	CUmemAllocationProp properties = { .type = 1,
					   .location = { type, id } };

	answer(cuda.cuMemCreate(&handles[slot], bytes, &properties, 0));
}

static void create_pool(unsigned long slot, int device)
{
	CUmemPoolProps properties = { .allocType = 1,
				      .location = { 1, device } };

	answer(cuda.cuMemPoolCreate(&pools[slot], &properties));
}

/* The child goes on with the commands; the parent answers when it has ended. */
static void fork_here(void)
{
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		answer(0);
		return;
	}
	waitpid(child, &status, 0);
	printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* What closefrom() does to the library, without doing it to the driver. */
static void close_ours(void)
{
	char path[64], target[4096];
	int closed = 0;

	for (int fd = 3; fd < 2048; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 6 && !memcmp(target + n - 6, "/usage", 6))
			closed += close(fd) == 0;
	}
	answer(closed > 0 ? 0 : -1);
}

static void device(int ordinal)
{
	CUcontext context;
	CUdevice found;
	int result = cuda.cuDeviceGet(&found, ordinal);

	if (!result)
		result = cuda.cuDevicePrimaryCtxRetain(&context, found);
	answer(result ? result : cuda.cuCtxSetCurrent(context));
}

#include "client_arrays.h"
#include "client_contexts.h"
#include "client_graphs.h"
#include "client_share.h"

static void memory(const char *verb, unsigned long a, unsigned long b,
		   unsigned long c, unsigned long d)
{
	size_t pitch = 0;

	if (!strcmp(verb, "alloc"))
		answer(cuda.cuMemAlloc_v2(&pointers[a], b));
	else if (!strcmp(verb, "managed"))
		answer(cuda.cuMemAllocManaged(&pointers[a], b, 1));
	else if (!strcmp(verb, "pitch"))
		answer(cuda.cuMemAllocPitch_v2(&pointers[a], &pitch, b, c, 4));
	else if (!strcmp(verb, "free"))
		answer(cuda.cuMemFree_v2(pointers[a]));
	else if (!strcmp(verb, "free-pointer"))
		answer(cuda.cuMemFree_v2(a));
	else if (!strcmp(verb, "fill"))
		fill(a, b, c);
	else if (!strcmp(verb, "create"))
		create(a, b, (int)c, (int)d);
	else if (!strcmp(verb, "release"))
		answer(cuda.cuMemRelease(handles[a]));
	else if (!strcmp(verb, "reserve"))
		answer(cuda.cuMemAddressReserve(&pointers[a], b, 0, 0, 0));
	else if (!strcmp(verb, "map"))
		answer(cuda.cuMemMap(pointers[a] + c, d, 0, handles[b], 0));
	else if (!strcmp(verb, "unmap"))
		answer(cuda.cuMemUnmap(pointers[a] + b, c));
	else if (!strcmp(verb, "retain"))
		answer(cuda.cuMemRetainAllocationHandle(
			&handles[a], (void *)(pointers[b] + c)));
	else
		die(verb);
}

static int stream_ordered(const char *verb, unsigned long a, unsigned long b,
			  unsigned long c)
{
	uint64_t threshold = b;

	if (!strcmp(verb, "async"))
		answer(cuda.cuMemAllocAsync(&pointers[a], b, streams[c]));
	else if (!strcmp(verb, "from-pool"))
		answer(cuda.cuMemAllocFromPoolAsync(&pointers[a], b, pools[c],
						    NULL));
	else if (!strcmp(verb, "free-async"))
		answer(cuda.cuMemFreeAsync(pointers[a], NULL));
	else if (!strcmp(verb, "pool"))
		create_pool(a, (int)b);
	else if (!strcmp(verb, "default-pool"))
		answer(cuda.cuDeviceGetDefaultMemPool(&pools[a], (int)b));
	else if (!strcmp(verb, "set-pool"))
		answer(cuda.cuDeviceSetMemPool((int)a, pools[b]));
	else if (!strcmp(verb, "pool-destroy"))
		answer(cuda.cuMemPoolDestroy(pools[a]));
	else if (!strcmp(verb, "trim"))
		answer(cuda.cuMemPoolTrimTo(pools[a], b));
	else if (!strcmp(verb, "threshold"))
		answer(cuda.cuMemPoolSetAttribute(pools[a], 4, &threshold));
	else if (!strcmp(verb, "stream"))
		answer(cuda.cuStreamCreate(&streams[a], 0));
	else if (!strcmp(verb, "sync"))
		answer(cuda.cuStreamSynchronize(NULL));
	else
		return 0;
	return 1;
}

static int other(const char *verb, unsigned long a, unsigned long b)
{
	size_t total = 0;
	int result;

	if (!strcmp(verb, "init")) {
		answer(cuda.cuInit(0));
	} else if (!strcmp(verb, "device")) {
		device((int)a);
	} else if (!strcmp(verb, "info")) {
		info();
	} else if (!strcmp(verb, "info-null")) {
		info_null();
	} else if (!strcmp(verb, "total")) {
		result = cuda.cuDeviceTotalMem_v2(&total, (CUdevice)a);
		printf("%d %zu\n", result, total);
	} else if (!strcmp(verb, "nvml")) {
		nvml_info((unsigned)a);
	} else if (!strcmp(verb, "fork")) {
		fork_here();
	} else if (!strcmp(verb, "close-ours")) {
		close_ours();
	} else if (!strcmp(verb, "errno")) {
		errno = 77;
		result = cuda.cuMemAlloc_v2(&pointers[a], b);
		printf("%d %d\n", result, errno);
	} else {
		return 0;
	}
	return 1;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "dlsym";
	char line[256], verb[32];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(how, "linked"))
		bind_linked();
	else if (!strcmp(how, "procaddr"))
		bind_procaddr();
	else
		bind_dlsym();
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long a = 0, b = 0, c = 0, d = 0;

		if (sscanf(line, "%31s %lu %lu %lu %lu", verb, &a, &b, &c,
			   &d) < 1)
			continue;
		if (!strcmp(verb, "exit"))
			exit((int)a);
		if (!other(verb, a, b) && !context_verbs(verb, a, b) &&
		    !array_verbs(verb, a, b, c, d) &&
		    !graph_verbs(verb, a, b, c, d) &&
		    !share_verbs(verb, a, b, c) &&
		    !stream_ordered(verb, a, b, c))
			memory(verb, a, b, c, d);
	}
	return 0;
}
