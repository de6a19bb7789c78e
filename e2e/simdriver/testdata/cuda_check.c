/*
 * Checks of the simulated libcuda, one process each: cuda_check CASE. A failed
 * check prints its line and the program exits with 1. "churn" runs for ever,
 * to be killed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "cuda_api.h"
#include "nvml_api.h"

#define MIB ((size_t)1 << 20)
#define BLOCK (2 * MIB)

static CUcontext start(void)
{
	CUcontext context = NULL;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

/* What the card has given out since the first call. */
static size_t used(void)
{
	static size_t first;
	size_t available = 0;

	OK(cuMemGetInfo_v2(&available, NULL));
	if (first == 0)
		first = available;
	return first - available;
}

static void check_errors(void)
{
	CUdeviceptr p;
	CUcontext context = (CUcontext)1;
	const char *text;
	size_t n;
	int count;

	EQUAL(cuMemAlloc_v2(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
	EQUAL(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	EQUAL(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
	OK(cuDriverGetVersion(&count));
	EQUAL(count, 13000);
	EQUAL(cuInit(1), CUDA_ERROR_INVALID_VALUE);
	OK(cuInit(0));
	OK(cuCtxGetCurrent(&context));
	CHECK(context == NULL);
	EQUAL(cuMemAlloc_v2(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
	EQUAL(cuMemGetInfo_v2(&n, &n), CUDA_ERROR_INVALID_CONTEXT);
	EQUAL(cuDevicePrimaryCtxRetain(&context, 99),
	      CUDA_ERROR_INVALID_DEVICE);
	start();
	EQUAL(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuMemAlloc_v2(NULL, 1), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuMemAlloc_v2(&p, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	EQUAL(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuMemFree_v2((CUdeviceptr)&p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemGetInfo_v2(NULL, NULL));
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
	CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
	EQUAL(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
	CHECK(text == NULL);
}

static void check_small(void)
{
	CUdeviceptr p[4096], q;

	start();
	EQUAL(used(), 0);
	for (int i = 0; i < 4096; i++) {
		OK(cuMemAlloc_v2(&p[i], 1 + i % 512));
		CHECK(p[i] % 512 == 0);
	}
	EQUAL(used(), BLOCK); /* 4096 units of 512 bytes are one block */
	OK(cuMemAlloc_v2(&q, 1));
	EQUAL(used(), 2 * BLOCK);
	OK(cuMemFree_v2(q));
	EQUAL(used(), BLOCK);
	EQUAL(cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuMemFree_v2(p[7] + 1), CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < 4096; i += 2)
		OK(cuMemFree_v2(p[i]));
	EQUAL(cuMemFree_v2(p[0]), CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < 2048; i++) /* the holes are used again */
		OK(cuMemAlloc_v2(&p[2 * i], 512));
	EQUAL(used(), BLOCK);
	for (int i = 0; i < 4096; i++)
		OK(cuMemFree_v2(p[i]));
	EQUAL(used(), 0);
	OK(cuMemAlloc_v2(&p[0], MIB)); /* the last size that shares a block */
	OK(cuMemAlloc_v2(&p[1], MIB));
	EQUAL(used(), BLOCK);
	OK(cuMemAlloc_v2(&p[2], MIB + 1));
	EQUAL(used(), 2 * BLOCK);
	CHECK(p[2] % BLOCK == 0);
	OK(cuMemAlloc_v2(&p[3], 2 * BLOCK + 1));
	EQUAL(used(), 5 * BLOCK);
	for (int i = 0; i < 4; i++)
		OK(cuMemFree_v2(p[i]));
	EQUAL(used(), 0);
}

/* Random allocations never overlap and all come back. */
static void check_random(void)
{
	enum { LIVE = 300 };
	static struct {
		CUdeviceptr at;
		size_t size;
	} live[LIVE];
	unsigned seed = 1;

	start();
	used();
	for (int step = 0; step < 60000; step++) {
		int i = rand_r(&seed) % LIVE;
		if (live[i].size != 0) {
			OK(cuMemFree_v2(live[i].at));
			live[i].size = 0;
			continue;
		}
		size_t size = 1 + (size_t)rand_r(&seed) % (1u << (rand_r(&seed) % 23));
		OK(cuMemAlloc_v2(&live[i].at, size));
		for (int j = 0; j < LIVE; j++)
			if (j != i && live[j].size != 0)
				CHECK(live[i].at + size <= live[j].at ||
				      live[j].at + live[j].size <= live[i].at);
		live[i].size = size;
	}
	for (int i = 0; i < LIVE; i++)
		if (live[i].size != 0)
			OK(cuMemFree_v2(live[i].at));
	EQUAL(used(), 0);
}

static void *allocate_in_thread(void *context)
{
	CUdeviceptr p[64] = { 0 };
	unsigned seed = (unsigned)(size_t)&p;

	OK(cuCtxSetCurrent(context));
	for (int step = 0; step < 20000; step++) {
		int i = rand_r(&seed) % 64;
		if (p[i] == 0) {
			OK(cuMemAlloc_v2(&p[i], 1 + rand_r(&seed) % 70000));
		} else {
			OK(cuMemFree_v2(p[i]));
			p[i] = 0;
		}
	}
	for (int i = 0; i < 64; i++)
		if (p[i] != 0)
			OK(cuMemFree_v2(p[i]));
	return NULL;
}

static void check_threads(void)
{
	CUcontext context = start();
	pthread_t threads[8];

	used();
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, allocate_in_thread, context);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	EQUAL(used(), 0);
}

static void check_contexts(void)
{
	CUcontext primary = start(), other, got;
	CUdevice device = -1;
	CUdeviceptr p, q;
	unsigned flags;
	int active;

	used();
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	OK(cuMemAlloc_v2(&p, 10));
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuCtxGetCurrent(&got));
	CHECK(got == other);
	OK(cuMemAlloc_v2(&q, 100 * MIB));
	OK(cuMemAlloc_v2(&q, 100));
	EQUAL(used(), 114 * MIB);
	OK(cuCtxDestroy_v2(other)); /* its memory goes with it */
	EQUAL(cuCtxDestroy_v2(other), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxGetCurrent(&got));
	CHECK(got == primary);
	EQUAL(used(), 12 * MIB);
	EQUAL(cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE);

	OK(cuCtxPushCurrent_v2(primary));
	OK(cuCtxPopCurrent_v2(&got));
	CHECK(got == primary);
	OK(cuCtxGetDevice(&device));
	EQUAL(device, 0);
	device = -1;
	OK(cuCtxGetDevice_v2(&device, primary));
	EQUAL(device, 0);

	EQUAL(cuCtxDestroy_v2(primary), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuDevicePrimaryCtxRetain(&got, 0));
	CHECK(got == primary);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 1);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 0);
	EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
	EQUAL(cuMemAlloc_v2(&p, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	start();
	EQUAL(used(), 0);
}

static size_t attribute(CUmemoryPool pool, int which)
{
	uint64_t value = 0;

	OK(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

#define RESERVED(pool) attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
#define USED(pool) attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)

static void check_pools(void)
{
	CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	CUmemoryPool pool, own, current;
	CUdeviceptr p, q;
	CUstream stream;
	uint64_t threshold = 6 * MIB, zero = 0;

	start();
	used();
	OK(cuStreamCreate(&stream, 1));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuDeviceGetMemPool(&current, 0));
	CHECK(pool == current);
	OK(cuMemAllocAsync(&p, 1000, stream));
	EQUAL(RESERVED(pool), BLOCK);
	EQUAL(USED(pool), 1024);
	OK(cuMemAllocAsync(&q, 9 * MIB, stream));
	EQUAL(RESERVED(pool), 12 * MIB);
	EQUAL(used(), 12 * MIB);
	OK(cuMemFreeAsync(q, stream));
	EQUAL(RESERVED(pool), 12 * MIB); /* kept until a synchronisation */
	OK(cuMemAllocAsync(&q, 10 * MIB, stream));
	EQUAL(RESERVED(pool), 12 * MIB); /* and used again */
	OK(cuMemFreeAsync(q, stream));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				 &threshold));
	OK(cuStreamSynchronize(stream));
	EQUAL(RESERVED(pool), 6 * MIB);
	OK(cuMemPoolTrimTo(pool, 0));
	EQUAL(RESERVED(pool), BLOCK); /* what is in use stays */
	EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 12 * MIB);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
				 &zero));
	EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), BLOCK);
	OK(cuMemFree_v2(p)); /* cuMemFree takes memory of a pool too */
	EQUAL(cuMemFreeAsync(p, stream), CUDA_ERROR_INVALID_VALUE);
	EQUAL(USED(pool), 0);
	OK(cuMemPoolTrimTo(pool, 0));
	EQUAL(used(), 0);
	EQUAL(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);

	properties.maxSize = 8 * MIB;
	OK(cuMemPoolCreate(&own, &properties));
	OK(cuMemAllocFromPoolAsync(&p, 8 * MIB, own, NULL));
	EQUAL(cuMemAllocFromPoolAsync(&q, 1, own, NULL),
	      CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuDeviceSetMemPool(0, own));
	EQUAL(cuMemAllocAsync(&q, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemPoolDestroy(own)); /* lives on until p is freed */
	EQUAL(cuMemPoolTrimTo(own, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuDeviceGetMemPool(&current, 0));
	CHECK(pool == current);
	EQUAL(used(), 8 * MIB);
	OK(cuMemFreeAsync(p, NULL));
	EQUAL(used(), 0);
}

/* A card that is full takes back what pools keep unused. */
static void check_pool_pressure(void)
{
	CUmemoryPool pool;
	CUdeviceptr p, q;
	uint64_t threshold = UINT64_MAX;
	size_t available;

	start();
	used();
	OK(cuMemGetInfo_v2(&available, NULL));
	available = available / BLOCK * BLOCK;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				 &threshold));
	OK(cuMemAllocAsync(&p, available - BLOCK, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	EQUAL(used(), available - BLOCK);
	OK(cuMemAlloc_v2(&q, available));
	EQUAL(RESERVED(pool), 0);
	EQUAL(cuMemAllocAsync(&p, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(q));
}

static void check_vmm(void)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	}, got;
	CUmemAccessDesc access = { properties.location, 3 };
	CUmemGenericAllocationHandle h, again, host;
	CUdeviceptr at, aligned;
	size_t granularity;

	start();
	used();
	OK(cuMemGetAllocationGranularity(&granularity, &properties, 0));
	EQUAL(granularity, BLOCK);
	EQUAL(cuMemCreate(&h, MIB, &properties, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemCreate(&h, 4 * BLOCK, &properties, 0));
	EQUAL(used(), 4 * BLOCK);
	OK(cuMemGetAllocationPropertiesFromHandle(&got, h));
	EQUAL(got.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
	OK(cuMemAddressReserve(&at, 16 * BLOCK, 0, 0, 0));
	EQUAL(used(), 4 * BLOCK); /* addresses cost nothing */
	EQUAL(cuMemSetAccess(at, 4 * BLOCK, &access, 1),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemMap(at, 4 * BLOCK, 0, h, 0));
	OK(cuMemMap(at + 8 * BLOCK, 4 * BLOCK, 0, h, 0)); /* twice */
	EQUAL(cuMemMap(at + 3 * BLOCK, 4 * BLOCK, 0, h, 0),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemSetAccess(at, 4 * BLOCK, &access, 1));
	OK(cuMemRelease(h)); /* mapped memory lives on */
	EQUAL(used(), 4 * BLOCK);
	EQUAL(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuMemAddressFree(at, 16 * BLOCK), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuMemUnmap(at, 2 * BLOCK), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(at, 4 * BLOCK));
	EQUAL(used(), 4 * BLOCK);
	OK(cuMemRetainAllocationHandle(&again, (void *)(at + 9 * BLOCK + 5)));
	OK(cuMemUnmap(at + 8 * BLOCK, 4 * BLOCK));
	EQUAL(used(), 4 * BLOCK); /* a handle is left */
	OK(cuMemRelease(again));
	EQUAL(used(), 0);
	OK(cuMemAddressFree(at, 16 * BLOCK));
	EQUAL(cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);

	OK(cuMemAddressReserve(&aligned, BLOCK, 64 * MIB, 0, 0));
	EQUAL(aligned % (64 * MIB), 0);
	OK(cuMemAddressFree(aligned, BLOCK));
	properties.location =
		(CUmemLocation){ CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 };
	OK(cuMemCreate(&host, 4 * BLOCK, &properties, 0));
	EQUAL(used(), 0); /* host memory is none of the card's */
	OK(cuMemRelease(host));
}

static void check_other_memory(void)
{
	CUdeviceptr p, base;
	size_t pitch, size;
	unsigned type;
	int ordinal = -1;
	void *host;

	start();
	used();
	OK(cuMemAllocPitch_v2(&p, &pitch, 1000, 4096, 4));
	EQUAL(pitch, 1024);
	EQUAL(used(), 4 * MIB);
	EQUAL(cuMemAllocPitch_v2(&base, &pitch, 1000, 1, 5),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemGetAddressRange_v2(&base, &size, p + 77));
	CHECK(base == p);
	EQUAL(size, 1024 * 4096);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	EQUAL(type, CU_MEMORYTYPE_DEVICE);
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				 p));
	EQUAL(ordinal, 0);
	EQUAL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				    (CUdeviceptr)&type),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));

	OK(cuMemAllocManaged(&p, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
	EQUAL(used(), 4 * MIB);
	memset((void *)p, 1, 3 * MIB); /* the CPU may touch it */
	OK(cuMemFree_v2(p));
	EQUAL(cuMemAllocManaged(&p, 1, 0), CUDA_ERROR_INVALID_VALUE);

	OK(cuMemHostAlloc(&host, 10 * MIB, 0));
	EQUAL(used(), 0);
	memset(host, 1, 10 * MIB);
	EQUAL(cuMemFree_v2((CUdeviceptr)host), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeHost(host));
	EQUAL(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
}

static void *address(const char *name, int version, int flags, int *status)
{
	void *function = NULL;

	OK(cuGetProcAddress_v2(name, &function, version, (uint64_t)flags,
			       status));
	return function;
}

static void check_versions(void)
{
	static const struct {
		const char *name;
		int version, flags;
		const char *symbol; /* NULL: too old for the name */
	} ladder[] = {
		{ "cuMemAlloc", 3020, 0, "cuMemAlloc_v2" },
		{ "cuMemAlloc", 13000, 2, "cuMemAlloc_v2" },
		{ "cuMemAlloc", 3010, 0, NULL },
		{ "cuMemAllocAsync", 11010, 0, NULL },
		{ "cuMemAllocAsync", 11020, 1, "cuMemAllocAsync" },
		{ "cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz" },
		{ "cuCtxCreate", 2000, 0, "cuCtxCreate" },
		{ "cuCtxCreate", 11030, 0, "cuCtxCreate_v2" },
		{ "cuCtxDestroy", 3020, 0, "cuCtxDestroy" },
		{ "cuIpcOpenMemHandle", 10020, 0, "cuIpcOpenMemHandle" },
		{ "cuCtxCreate", 12040, 0, "cuCtxCreate_v3" },
		{ "cuCtxCreate", 13000, 0, "cuCtxCreate_v4" },
		{ "cuCtxGetDevice", 12090, 0, "cuCtxGetDevice" },
		{ "cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2" },
		{ "cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2" },
		{ "cuGetProcAddress", 11030, 0, "cuGetProcAddress" },
		{ "cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2" },
		{ "cuDeviceTotalMem", 2000, 0, "cuDeviceTotalMem" },
		{ "cuDeviceTotalMem", 3020, 0, "cuDeviceTotalMem_v2" },
		{ "cuDeviceGetUuid", 11030, 0, "cuDeviceGetUuid" },
		{ "cuDeviceGetUuid", 11040, 0, "cuDeviceGetUuid_v2" },
		{ "cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz" },
		{ "cuLaunchKernelEx", 11060, 0, "cuLaunchKernelEx" },
		{ "cuEventRecord", 13000, 2, "cuEventRecord_ptsz" },
		{ "cuEventElapsedTime", 12070, 0, "cuEventElapsedTime" },
		{ "cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2" },
		{ "cuGraphInstantiate", 11080, 0, "cuGraphInstantiate_v2" },
		{ "cuGraphInstantiate", 12000, 0,
		  "cuGraphInstantiateWithFlags" },
		{ "cuGraphAddNode", 12020, 0, "cuGraphAddNode" },
		{ "cuGraphAddNode", 12030, 0, "cuGraphAddNode_v2" },
		{ "cuGraphLaunch", 12000, 2, "cuGraphLaunch_ptsz" },
		{ "cuStreamBeginCapture", 10010, 1, "cuStreamBeginCapture_v2" },
		{ "cuStreamGetCaptureInfo", 13000, 2,
		  "cuStreamGetCaptureInfo_v3_ptsz" },
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *function = &library;
	int status = -1;

	for (size_t i = 0; i < sizeof(ladder) / sizeof(ladder[0]); i++) {
		const char *symbol = ladder[i].symbol;
		void *got = address(ladder[i].name, ladder[i].version,
				    ladder[i].flags, &status);
		void *want = symbol == NULL ? NULL : dlsym(library, symbol);
		if (got != want || (symbol != NULL && want == NULL))
			printf("%s of %d with %d is not %s\n", ladder[i].name,
			       ladder[i].version, ladder[i].flags,
			       symbol == NULL ? "refused" : symbol),
				failures++;
		EQUAL(status,
		      symbol == NULL ?
			      CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT :
			      CU_GET_PROC_ADDRESS_SUCCESS);
	}
	CHECK(address("cuNoSuchThing", 13000, 0, &status) == NULL);
	EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK(address("cuMemAlloc_v2", 13000, 0, &status) == NULL);
	EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	EQUAL(cuGetProcAddress_v2("cuInit", &function, 13010, 0, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuGetProcAddress_v2("cuInit", &function, 13000, 4, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuGetProcAddress("cuNoSuchThing", &function, 12000, 0),
	      CUDA_ERROR_NOT_FOUND);
	CHECK(function == NULL);
}

/* An initialised parent's child cannot use CUDA, and costs the parent nothing;
 * a child of a parent that never called cuInit can. */
static void check_fork(void)
{
	CUdeviceptr p;
	int status = 1;
	pid_t early = fork();

	if (early == 0) {
		start();
		OK(cuMemAlloc_v2(&p, 1));
		_exit(failures);
	}
	waitpid(early, &status, 0);
	EQUAL(status, 0);
	start();
	used();
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	pid_t child = fork();
	if (child == 0) {
		EQUAL(cuMemAlloc_v2(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
		EQUAL(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
		fflush(stdout);
		_exit(failures);
	}
	waitpid(child, &status, 0);
	EQUAL(status, 0);
	EQUAL(used(), 10 * MIB);
	OK(cuMemFree_v2(p));
	EQUAL(used(), 0);
}

/* The description that this one runs with makes a context cost 100 MiB. */
static void check_context_cost(void)
{
	CUcontext context[2];
	CUdeviceptr p;
	size_t available = 0, total;

	start();
	OK(cuMemGetInfo_v2(&available, &total));
	EQUAL(total - available, 100 * MIB);
	OK(cuCtxCreate_v2(&context[0], 0, 0));
	OK(cuMemGetInfo_v2(&available, &total));
	EQUAL(total - available, 200 * MIB);
	OK(cuCtxDestroy_v2(context[0]));
	OK(cuMemGetInfo_v2(&available, &total));
	EQUAL(total - available, 100 * MIB);
	OK(cuMemAlloc_v2(&p, available / BLOCK * BLOCK - 50 * MIB));
	EQUAL(cuCtxCreate_v2(&context[1], 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

static void check_no_device(void)
{
	EQUAL(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void check_devices(void)
{
	int count;

	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	for (int i = 0; i < count; i++) {
		CUuuid uuid;
		OK(cuDeviceGetUuid_v2(&uuid, i));
		printf("GPU-");
		for (int j = 0; j < 16; j++)
			printf("%s%02x", j == 4 || j == 6 || j == 8 || j == 10 ?
					       "-" : "",
			       (unsigned char)uuid.bytes[j]);
		printf("\n");
	}
}

#define NVML(name, ...) (((__typeof__(&name))dlsym(nvml, #name))(__VA_ARGS__))

/* A process that loads both libraries, which share the ledger: NVML sees what
 * this very process holds, and its going away takes nothing from libcuda. */
static void beside_nvml(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlDevice_t device;
	nvmlMemory_t memory;
	nvmlMemory_v2_t second = { .version = 0 };
	nvmlProcessInfo_t info;
	unsigned count = 0;
	CUdeviceptr p;

	start();
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	EQUAL(NVML(nvmlInit_v2), NVML_SUCCESS);
	EQUAL(NVML(nvmlDeviceGetHandleByIndex_v2, 0, &device), NVML_SUCCESS);
	EQUAL(NVML(nvmlDeviceGetMemoryInfo_v2, device, &second),
	      NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	second.version = NVML_VERSIONED(nvmlMemory_v2_t, 2);
	EQUAL(NVML(nvmlDeviceGetMemoryInfo_v2, device, &second), NVML_SUCCESS);
	EQUAL(second.used, 10 * MIB);
	EQUAL(NVML(nvmlDeviceGetMemoryInfo, device, &memory), NVML_SUCCESS);
	EQUAL(memory.used, second.reserved + 10 * MIB);
	EQUAL(NVML(nvmlDeviceGetComputeRunningProcesses_v3, device, &count,
		   NULL),
	      NVML_ERROR_INSUFFICIENT_SIZE);
	EQUAL(count, 1);
	EQUAL(NVML(nvmlDeviceGetComputeRunningProcesses_v3, device, &count,
		   &info),
	      NVML_SUCCESS);
	EQUAL(info.pid, getpid());
	EQUAL(info.usedGpuMemory, 10 * MIB);
	EQUAL(NVML(nvmlShutdown), NVML_SUCCESS);
	EQUAL(NVML(nvmlShutdown), NVML_ERROR_UNINITIALIZED);
	dlclose(nvml);
	if (failures != 0)
		exit(1);
	printf("ready\n");
	fflush(stdout);
	pause();
}

/* Allocates as many bytes as each line of its input says, and answers. */
static void obey(void)
{
	size_t bytes;
	CUdeviceptr p;

	start();
	printf("ready\n");
	fflush(stdout);
	while (scanf("%zu", &bytes) == 1) {
		printf("%d\n", cuMemAlloc_v2(&p, bytes));
		fflush(stdout);
	}
}

static void churn(void)
{
	CUdeviceptr p[40] = { 0 };
	unsigned seed = (unsigned)getpid();

	start();
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		int i = rand_r(&seed) % 40;
		size_t size = 1 + (size_t)rand_r(&seed) % (400 * MIB);
		if (p[i] != 0) {
			OK(cuMemFree_v2(p[i]));
			p[i] = 0;
		} else if (i % 2 == 0) {
			cuMemAlloc_v2(&p[i], size % (i % 4 == 0 ? 5000 : SIZE_MAX));
		} else {
			cuMemAllocAsync(&p[i], size, NULL);
		}
		if (failures != 0)
			exit(1);
	}
}

#include "check_memory.h"

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "errors", check_errors },
		{ "small", check_small },
		{ "random", check_random },
		{ "threads", check_threads },
		{ "contexts", check_contexts },
		{ "pools", check_pools },
		{ "pool pressure", check_pool_pressure },
		{ "vmm", check_vmm },
		{ "other memory", check_other_memory },
		{ "versions", check_versions },
		{ "fork", check_fork },
		{ "context cost", check_context_cost },
		{ "limits", check_limits },
		{ "green", check_green },
		{ "arrays", check_arrays },
		{ "sparse", check_sparse },
		{ "shared memory", check_shared_memory },
		{ "call faults", check_call_faults },
		{ "own pointers", check_own_pointers },
		{ "no device", check_no_device },
		{ "devices", check_devices },
		{ "beside nvml", beside_nvml },
		{ "obey", obey },
		{ "churn", churn },
	};

	return RUN_CASE(cases, argc, argv);
}
