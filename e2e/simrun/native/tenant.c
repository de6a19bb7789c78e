/*
 * A tenant: launches kernels or a graph of them until its time is over.
 *
 *	tenant key=value...
 *	  kernel=<name>    of a function of the simulated driver
 *	  call=<kind>      by which call: kernel, cooperative, ex, ptsz, grid or
 *	                   multi
 *	  graph=<n>        launch a graph of n of them instead
 *	  sync=<n>         wait for the GPU after each n launches; 0: never
 *	  launch_us=<us>   that the host needs for a launch
 *	  gap_us=<us>      that it rests after each wait, or after each launch
 *	  on_ms, off_ms    work so long, rest so long; 0: always work
 *	  start_ms, end_ms of the clock
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

static struct {
	const char *kernel, *call;
	long graph, sync, launch_us, gap_us, on_ms, off_ms, start_ms, end_ms;
} options;

static void *library;

static void *find(const char *name)
{
	void *function = dlsym(library, name);

	if (!function) {
		fprintf(stderr, "tenant: no %s\n", name);
		exit(1);
	}
	return function;
}

static void check(int result, const char *what)
{
	if (result != 0) {
		fprintf(stderr, "tenant: %s: error %d\n", what, result);
		exit(1);
	}
}

/* cu(name, (types), arguments...): looks up and calls. */
#define cu(name, types, ...) \
	check(((int(*) types)find(#name))(__VA_ARGS__), #name)

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void rest(long us)
{
	if (us > 0)
		usleep((useconds_t)us);
}

static void read_option(const char *text)
{
	static const struct {
		const char *name;
		long *value;
	} numbers[] = {
		{ "graph=", &options.graph },	{ "sync=", &options.sync },
		{ "launch_us=", &options.launch_us },
		{ "gap_us=", &options.gap_us }, { "on_ms=", &options.on_ms },
		{ "off_ms=", &options.off_ms },
		{ "start_ms=", &options.start_ms },
		{ "end_ms=", &options.end_ms },
	};

	if (strncmp(text, "kernel=", 7) == 0) {
		options.kernel = text + 7;
		return;
	}
	if (strncmp(text, "call=", 5) == 0) {
		options.call = text + 5;
		return;
	}
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		size_t n = strlen(numbers[i].name);

		if (strncmp(text, numbers[i].name, n) == 0) {
			*numbers[i].value = atol(text + n);
			return;
		}
	}
	fprintf(stderr, "tenant: what is %s?\n", text);
	exit(2);
}

static CUstream stream;
static CUfunction function;
static CUgraphExec graph;

static int is_call(const char *name)
{
	return options.call && strcmp(options.call, name) == 0;
}

static void set_up(void)
{
	CUcontext context;
	CUmodule module;
	int device;

	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "tenant: %s\n", dlerror());
		exit(1);
	}
	cu(cuInit, (unsigned), 0);
	cu(cuDeviceGet, (int *, int), &device, 0);
	cu(cuDevicePrimaryCtxRetain, (CUcontext *, int), &context, device);
	cu(cuCtxSetCurrent, (CUcontext), context);
	cu(cuStreamCreate, (CUstream *, unsigned), &stream, 1);
	cu(cuModuleLoadData, (CUmodule *, const void *), &module,
	   "aliquot-sim-module");
	cu(cuModuleGetFunction, (CUfunction *, CUmodule, const char *),
	   &function, module, options.kernel);
	if (is_call("grid"))
		cu(cuFuncSetBlockShape, (CUfunction, int, int, int), function,
		   256, 1, 1);
}

#define SIZE 128, 1, 1, 256, 1, 1
#define SIZE_TYPES unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
#define KERNEL_TYPES (CUfunction, SIZE_TYPES, unsigned, CUstream, void **, void **)

struct config {
	unsigned size[6], shared;
	CUstream stream;
	void *attributes;
	unsigned attribute_count;
};

struct part {
	CUfunction function;
	unsigned size[6], shared;
	CUstream stream;
	void **parameters;
};

static void launch_kernel(void)
{
	struct config config = { { SIZE }, 0, stream, NULL, 0 };
	struct part part = { function, { SIZE }, 0, stream, NULL };

	if (is_call("cooperative"))
		cu(cuLaunchCooperativeKernel,
		   (CUfunction, SIZE_TYPES, unsigned, CUstream, void **),
		   function, SIZE, 0, stream, NULL);
	else if (is_call("ex"))
		cu(cuLaunchKernelEx,
		   (const struct config *, CUfunction, void **, void **),
		   &config, function, NULL, NULL);
	else if (is_call("ptsz"))
		cu(cuLaunchKernel_ptsz, KERNEL_TYPES, function, SIZE, 0, NULL,
		   NULL, NULL);
	else if (is_call("grid"))
		cu(cuLaunchGridAsync, (CUfunction, int, int, CUstream),
		   function, 128, 1, stream);
	else if (is_call("multi"))
		cu(cuLaunchCooperativeKernelMultiDevice,
		   (struct part *, unsigned, unsigned), &part, 1, 0);
	else
		cu(cuLaunchKernel, KERNEL_TYPES, function, SIZE, 0, stream,
		   NULL, NULL);
}

static void capture_graph(void)
{
	CUgraph captured;

	cu(cuStreamBeginCapture_v2, (CUstream, int), stream, 1);
	for (long i = 0; i < options.graph; i++)
		launch_kernel();
	cu(cuStreamEndCapture, (CUstream, CUgraph *), stream, &captured);
	cu(cuGraphInstantiateWithFlags,
	   (CUgraphExec *, CUgraph, unsigned long long), &graph, captured, 0);
}

static void launch(void)
{
	if (graph)
		cu(cuGraphLaunch, (CUgraphExec, CUstream), graph, stream);
	else
		launch_kernel();
	rest(options.launch_us);
}

/* Whether the tenant works at that time, in microseconds since its start. */
static int is_on(uint64_t us)
{
	uint64_t on = (uint64_t)options.on_ms, off = (uint64_t)options.off_ms;

	return off == 0 || us / 1000 % (on + off) < on;
}

int main(int argc, char **argv)
{
	uint64_t start, end;
	long launched = 0;

	for (int i = 1; i < argc; i++)
		read_option(argv[i]);
	set_up();
	if (options.graph > 0)
		capture_graph();
	start = now_us() + (uint64_t)options.start_ms * 1000;
	end = start + (uint64_t)(options.end_ms - options.start_ms) * 1000;
	rest(options.start_ms * 1000);
	while (now_us() < end) {
		if (!is_on(now_us() - start)) {
			rest(1000);
			continue;
		}
		launch();
		launched++;
		if (options.sync > 0 && launched % options.sync == 0)
			cu(cuStreamSynchronize, (CUstream), stream);
		if (options.sync == 0 || launched % options.sync == 0)
			rest(options.gap_us);
	}
	return 0;
}
