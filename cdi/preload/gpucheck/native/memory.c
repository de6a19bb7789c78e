/*
 * Whether a real GPU's memory is held to a quota, by each kind of allocation.
 *
 *	memory <quota MiB>	under the library, with a share of so much, whose
 *				contexts are charged nothing
 *	memory watch		without it: for each line read, prints the GPU's
 *				free bytes, as the driver sees them
 *
 * Beside what the library says it prints what the GPU lost meanwhile, as a second
 * process sees it; so the GPU must be idle. More than the quota and a margin for
 * what the driver makes for itself is a failure, as is a grant below the quota
 * that is refused.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "../../src/cuda_api.h"

#define MIB ((size_t)1 << 20)
#define MARGIN (64 * MIB)
#define MANY 65536

static size_t quota, idle; /* idle: free on the GPU before the first check */
static int device, failures;
static FILE *watch_in, *watch_out;

static CUmemAllocationProp on_device(void)
{
	return (CUmemAllocationProp){
		.type = 1, .location = { CU_MEM_LOCATION_TYPE_DEVICE, device }
	};
}

static size_t get_free(void)
{
	size_t left, total;

	need(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
	return left;
}

/* The other process. */
static int watch(void)
{
	char line[16];
	void *context;

	driver_start(&device, &context);
	while (fgets(line, sizeof(line), stdin)) {
		printf("%zu\n", get_free());
		fflush(stdout);
	}
	return 0;
}

static void start_watch(void)
{
	int to[2], from[2];

	if (pipe(to) || pipe(from))
		exit(2);
	if (fork() == 0) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		close(to[1]);
		close(from[0]);
		unsetenv("LD_PRELOAD");
		execl("/proc/self/exe", "memory", "watch", (char *)NULL);
		_exit(2);
	}
	close(to[0]);
	close(from[1]);
	watch_in = fdopen(to[1], "w");
	watch_out = fdopen(from[0], "r");
}

static size_t left_on_gpu(void)
{
	size_t left;

	fputc('\n', watch_in);
	fflush(watch_in);
	if (fscanf(watch_out, "%zu", &left) != 1) {
		fprintf(stderr, "no answer of the watching process\n");
		exit(2);
	}
	return left;
}

static size_t lost(void)
{
	size_t left = left_on_gpu();

	return left < idle ? idle - left : 0;
}

/* Says how a check ended. got: bytes that it was given at the most. */
static void verdict(const char *name, size_t got, size_t least, size_t gpu,
		    const char *wrong)
{
	if (!wrong && got > quota)
		wrong = "more than the quota was given";
	if (!wrong && got < least)
		wrong = "less than the quota was given";
	if (!wrong && gpu > quota + MARGIN)
		wrong = "the GPU lost more than the quota";
	failures += wrong != NULL;
	printf("%s %s: given %zu MiB, the GPU lost %zu MiB%s%s\n",
	       wrong ? "fail" : "pass", name, got / MIB, gpu / MIB,
	       wrong ? ": " : "", wrong ? wrong : "");
}

static const char *check_empty(void)
{
	return get_free() == quota ? NULL : "it was not all given back";
}

/* One kind of allocation, of a size, until it is refused. */
struct kind {
	const char *name;
	size_t size;
	size_t least; /* that must be given, less than the quota */
	int (*make)(size_t size, uint64_t *handle);
	void (*drop)(uint64_t handle);
	void (*end)(void);
};

static void check_kind(const struct kind *kind)
{
	static uint64_t handles[MANY];
	const char *wrong = NULL;
	size_t n = 0, got, gpu;
	int result = 0;

	while (n < MANY && n * kind->size <= 2 * quota &&
	       !(result = kind->make(kind->size, &handles[n])))
		n++;
	got = n * kind->size;
	gpu = lost();
	if (result == 0)
		wrong = "it was never refused";
	else if (result != CUDA_ERROR_OUT_OF_MEMORY)
		wrong = "it was refused with another error than of memory";
	for (size_t i = 0; i < n; i++)
		kind->drop(handles[i]);
	if (kind->end)
		kind->end();
	verdict(kind->name, got, kind->least, gpu, wrong ? wrong : check_empty());
}

static int make_linear(size_t size, uint64_t *handle)
{
	CUdeviceptr p = 0;
	int result = cu(cuMemAlloc_v2, (CUdeviceptr *, size_t), &p, size);

	*handle = p;
	return result;
}

static void drop_linear(uint64_t handle)
{
	need(cuMemFree_v2, (CUdeviceptr), handle);
}

/* A row of 1 MiB each: what the pitch adds is the driver's. */
static int make_pitch(size_t size, uint64_t *handle)
{
	CUdeviceptr p = 0;
	size_t pitch;
	int result = cu(cuMemAllocPitch_v2,
			(CUdeviceptr *, size_t *, size_t, size_t, unsigned), &p,
			&pitch, MIB, size / MIB, 16);

	*handle = p;
	return result;
}

static int make_managed(size_t size, uint64_t *handle)
{
	CUdeviceptr p = 0;
	int result = cu(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned),
			&p, size, 1);

	*handle = p;
	return result;
}

static int make_physical(size_t size, uint64_t *handle)
{
	CUmemAllocationProp prop = on_device();

	return cu(cuMemCreate,
		  (uint64_t *, size_t, const CUmemAllocationProp *,
		   unsigned long long),
		  handle, size, &prop, 0);
}

static void drop_physical(uint64_t handle)
{
	need(cuMemRelease, (uint64_t), handle);
}

static int make_array(size_t size, uint64_t *handle)
{
	CUDA_ARRAY_DESCRIPTOR d = { 4096, size / 4096 / 4, 0x20, 1 };

	return cu(cuArrayCreate_v2, (uint64_t *, const CUDA_ARRAY_DESCRIPTOR *),
		  handle, &d);
}

static void drop_array(uint64_t handle)
{
	need(cuArrayDestroy, (void *), (void *)(uintptr_t)handle);
}

static int make_ordered(size_t size, uint64_t *handle)
{
	CUdeviceptr p = 0;
	int result = cu(cuMemAllocAsync, (CUdeviceptr *, size_t, void *), &p,
			size, NULL);

	*handle = p;
	return result;
}

static void drop_ordered(uint64_t handle)
{
	need(cuMemFreeAsync, (CUdeviceptr, void *), handle, NULL);
}

static void synchronize(void)
{
	need(cuStreamSynchronize, (void *), NULL);
}

static void trim(CUmemoryPool of)
{
	synchronize();
	need(cuMemPoolTrimTo, (void *, size_t), of, 0);
}

static void end_ordered(void)
{
	CUmemoryPool of;

	need(cuDeviceGetDefaultMemPool, (CUmemoryPool *, int), &of, device);
	trim(of);
}

static CUmemoryPool pool;

static int make_pooled(size_t size, uint64_t *handle)
{
	CUmemPoolProps props = { .allocType = 1,
				 .location = on_device().location };
	cuuint64_t keep = UINT64_MAX;
	CUdeviceptr p = 0;
	int result;

	if (!pool) {
		need(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *),
		     &pool, &props);
		/* It keeps what is freed. */
		need(cuMemPoolSetAttribute, (CUmemoryPool, int, void *), pool,
		     4, &keep);
	}
	result = cu(cuMemAllocFromPoolAsync,
		    (CUdeviceptr *, size_t, void *, void *), &p, size, pool,
		    NULL);
	*handle = p;
	return result;
}

/* What the pool keeps is in use, until memory is short. */
static void end_pooled(void)
{
	CUdeviceptr p = 0;
	int result;

	synchronize();
	result = cu(cuMemAlloc_v2, (CUdeviceptr *, size_t), &p, quota);
	if (result) {
		printf("fail pool: %d for memory that an idle pool keeps\n",
		       result);
		failures++;
	} else {
		drop_linear(p);
	}
	need(cuMemPoolDestroy, (void *), pool);
}

static void check_total(void)
{
	size_t left, total, of_device;

	need(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
	need(cuDeviceTotalMem_v2, (size_t *, int), &of_device, device);
	verdict("total", total, quota, 0,
		left != quota || of_device != quota
			? "free memory or the device's total is not the quota"
			: NULL);
}

/* All of the quota at once, and then not a byte. */
static void check_exact(void)
{
	CUdeviceptr all = 0, more = 0;
	int result = cu(cuMemAlloc_v2, (CUdeviceptr *, size_t), &all, quota);
	const char *wrong = result ? "the quota at once is refused" : NULL;
	size_t gpu = lost();

	if (!wrong && get_free() != 0)
		wrong = "memory is shown free";
	if (!wrong && cu(cuMemAlloc_v2, (CUdeviceptr *, size_t), &more, 1) !=
			      CUDA_ERROR_OUT_OF_MEMORY)
		wrong = "a byte more is not refused";
	if (all)
		drop_linear(all);
	if (!wrong && cu(cuMemAlloc_v2, (CUdeviceptr *, size_t), &more,
			 quota + 1) != CUDA_ERROR_OUT_OF_MEMORY)
		wrong = "a byte more than the quota is not refused";
	verdict("exact", quota, quota, gpu, wrong ? wrong : check_empty());
}

/* Physical memory that is mapped and used. */
static void check_mapped(void)
{
	struct {
		CUmemLocation location;
		int flags;
	} access = { on_device().location, 3 };
	size_t size = 256 * MIB, gpu;
	uint64_t handle;
	CUdeviceptr p;

	need(cuMemAddressReserve,
	     (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long),
	     &p, size, 0, 0, 0);
	if (make_physical(size, &handle)) {
		verdict("mapped", 0, size, 0, NULL);
		return;
	}
	need(cuMemMap, (CUdeviceptr, size_t, size_t, uint64_t,
			unsigned long long), p, size, 0, handle, 0);
	need(cuMemSetAccess, (CUdeviceptr, size_t, const void *, size_t), p,
	     size, &access, 1);
	drop_physical(handle); /* the mapping holds it */
	gpu = lost();
	const char *wrong = get_free() == quota - size
		? NULL
		: "what is mapped is not charged once";
	need(cuMemUnmap, (CUdeviceptr, size_t), p, size);
	need(cuMemAddressFree, (CUdeviceptr, size_t), p, size);
	verdict("mapped", size, size, gpu, wrong ? wrong : check_empty());
}

/* A graph that allocates and frees so much; the error that it met. */
static int run_graph(size_t size, size_t *gpu)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {
		.poolProps = { .allocType = 1,
			       .location = on_device().location },
		.bytesize = size,
	};
	void *graph, *allocate, *release, *exec = NULL;
	int result;

	need(cuGraphCreate, (void **, unsigned), &graph, 0);
	need(cuGraphAddMemAllocNode,
	     (void **, void *, const void *, size_t, void *), &allocate, graph,
	     NULL, 0, &p);
	need(cuGraphAddMemFreeNode,
	     (void **, void *, void *const *, size_t, CUdeviceptr), &release,
	     graph, &allocate, 1, p.dptr);
	result = cu(cuGraphInstantiateWithFlags,
		    (void **, void *, unsigned long long), &exec, graph, 0);
	if (!result)
		result = cu(cuGraphLaunch, (void *, void *), exec, NULL);
	if (!result)
		result = cu(cuGraphLaunch, (void *, void *), exec, NULL);
	synchronize();
	*gpu = lost();
	if (exec)
		need(cuGraphExecDestroy, (void *), exec);
	need(cuGraphDestroy, (void *), graph);
	need(cuDeviceGraphMemTrim, (int), device);
	return result;
}

static void check_graph(void)
{
	const char *wrong = NULL;
	size_t gpu, more;

	if (run_graph(quota / 2, &gpu))
		wrong = "half of the quota is refused";
	else if (run_graph(2 * quota, &more) != CUDA_ERROR_OUT_OF_MEMORY)
		wrong = "twice the quota is not refused";
	verdict("graph", quota / 2, 0, gpu, wrong ? wrong : check_empty());
}

static const struct kind kinds[] = {
	{ "linear", 32 * MIB, 0, make_linear, drop_linear, NULL },
	{ "small", 64 << 10, 2 * MIB, make_linear, drop_linear, NULL },
	{ "pitch", 32 * MIB, 64 * MIB, make_pitch, drop_linear, NULL },
	{ "managed", 32 * MIB, 0, make_managed, drop_linear, NULL },
	{ "physical", 32 * MIB, 0, make_physical, drop_physical, NULL },
	{ "array", 16 * MIB, 64 * MIB, make_array, drop_array, NULL },
	{ "ordered", 32 * MIB, 64 * MIB, make_ordered, drop_ordered,
	  end_ordered },
	{ "pool", 32 * MIB, 64 * MIB, make_pooled, drop_ordered, end_pooled },
};

int main(int argc, char **argv)
{
	void *context;

	if (argc == 2 && strcmp(argv[1], "watch") == 0)
		return watch();
	if (argc != 2 || (quota = (size_t)atoi(argv[1]) * MIB) == 0)
		return 2;
	start_watch();
	driver_start(&device, &context);
	idle = left_on_gpu();
	check_total();
	check_exact();
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct kind kind = kinds[i];

		kind.least = quota - kind.least;
		check_kind(&kind);
	}
	check_mapped();
	check_graph();
	fclose(watch_in);
	wait(NULL);
	return failures != 0;
}
