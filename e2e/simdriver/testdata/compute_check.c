/*
 * Checks of how the simulated libcuda computes, one process each: compute_check
 * CASE. Time is what this program says: it has clock_gettime and clock_nanosleep
 * of its own, and who waits for a card makes the clock jump. A case that forks
 * shares the clock. Cases after "real time" leave the clock alone.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "cuda_api.h"
#include "nvml_api.h"

#define MIB ((size_t)1 << 20)
#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

static _Atomic uint64_t *simulated; /* NULL: the clock is the real one */

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	if (simulated == NULL || clock != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, clock, ts);
	ts->tv_sec = (time_t)(*simulated / 1000000000);
	ts->tv_nsec = (long)(*simulated % 1000000000);
	return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
		    struct timespec *left)
{
	uint64_t to = (uint64_t)until->tv_sec * 1000000000 +
		      (uint64_t)until->tv_nsec;
	uint64_t now;

	if (simulated == NULL)
		return (int)syscall(SYS_clock_nanosleep, clock, flags, until,
				    left);
	now = *simulated;
	while (now < to && !atomic_compare_exchange_weak(simulated, &now, to))
		;
	sched_yield();
	return 0;
}

static uint64_t now(void)
{
	return *simulated;
}

static void simulate(void)
{
	simulated = mmap(NULL, sizeof(*simulated), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	*simulated = 1000 * UINT64_C(1000000000);
}

static CUcontext start(void)
{
	CUcontext context = NULL;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

static CUmodule module(void)
{
	static CUmodule loaded;

	if (loaded == NULL)
		OK(cuModuleLoadData(&loaded, "aliquot-sim-module"));
	return loaded;
}

static CUfunction function(const char *name)
{
	CUfunction made = NULL;

	OK(cuModuleGetFunction(&made, module(), name));
	return made;
}

static CUresult launch(CUfunction f, CUstream stream)
{
	return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void run(const char *name, CUstream stream)
{
	OK(launch(function(name), stream));
}

static CUevent event(void)
{
	CUevent made = NULL;

	OK(cuEventCreate(&made, 0));
	return made;
}

static CUevent record(CUstream stream)
{
	CUevent made = event();

	OK(cuEventRecord(made, stream));
	return made;
}

/* In nanoseconds; the result is in half microseconds. */
static long long elapsed(CUevent start, CUevent end)
{
	float ms = -1;

	OK(cuEventElapsedTime(&ms, start, end));
	return (long long)((double)ms * 1e6 + (ms < 0 ? -0.5 : 0.5));
}

/* How long a function of that name has the card. */
static long long time_of(CUfunction f)
{
	CUevent a = record(NULL), b;

	OK(launch(f, NULL));
	b = record(NULL);
	OK(cuEventSynchronize(b));
	return elapsed(a, b);
}

static size_t used(void)
{
	static size_t first;
	size_t available = 0;

	OK(cuMemGetInfo_v2(&available, NULL));
	if (first == 0)
		first = available;
	return first - available;
}

static void check_launches(void)
{
	CUlaunchConfig config = { 1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0 };
	CUDA_LAUNCH_PARAMS several[2] = { { .function = NULL } };
	CUfunction f;
	CUstream s;

	simulate();
	start();
	uint64_t begin = now();
	f = function("busy_300us");
	OK(cuStreamCreate(&s, 1));
	OK(launch(f, s));
	EQUAL(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	EQUAL(now() - begin, 0); /* nobody waits for a launch */
	OK(cuStreamSynchronize(s));
	EQUAL(now() - begin, 300 * US);
	OK(cuStreamQuery(s));
	OK(cuLaunchKernelEx(&config, f, NULL, NULL));
	config.hStream = s;
	OK(cuLaunchKernelEx_ptsz(&config, f, NULL, NULL));
	OK(cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL));
	OK(cuLaunchCooperativeKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, s, NULL));
	for (int i = 0; i < 2; i++)
		several[i] = (CUDA_LAUNCH_PARAMS){ f, 1, 1, 1, 1, 1, 1, 0,
						   s, NULL };
	OK(cuLaunchCooperativeKernelMultiDevice(several, 2, 0));
	EQUAL(cuLaunchGrid(f, 1, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuFuncSetBlockShape(f, 16, 1, 1));
	OK(cuLaunch(f));
	OK(cuLaunchGrid(f, 2, 2));
	OK(cuLaunchGridAsync(f, 2, 2, s));
	OK(cuCtxSynchronize());
	EQUAL(now() - begin, 10 * 300 * US);

	config.blockDimZ = 0;
	EQUAL(cuLaunchKernelEx(&config, f, NULL, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	several[1].hStream = NULL;
	EQUAL(cuLaunchCooperativeKernelMultiDevice(several, 2, 0),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s, NULL, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)&s, NULL, NULL),
	      CUDA_ERROR_INVALID_HANDLE);
	OK(cuCtxSynchronize());
	EQUAL(now() - begin, 10 * 300 * US); /* what fails does not run */
}

static void check_names(void)
{
	CUmodule other;
	CUfunction range, same, few;
	long long sum = 0;

	simulate();
	start();
	EQUAL(time_of(function("busy_2000us")), 2 * MS);
	EQUAL(time_of(function("busy_7ms")), 7 * MS);
	EQUAL(time_of(function("busy_2500ns")), 2500);
	EQUAL(time_of(function("busy_2749ns")), 2500); /* the clock's tick */
	EQUAL(time_of(function("busy_0us")), 0);
	for (const char **name = (const char *[]){ "gemm", "busy_", "busy_5",
						   "busy_5s", "busy_5usec",
						   "busy_9us_to_5us", "meet_5us",
						   "meet_5us_2", "busy_5us_to",
						   NULL };
	     *name != NULL; name++)
		EQUAL(time_of(function(*name)), 5 * US);
	EQUAL(time_of(NULL), 5 * US);
	EQUAL(time_of((CUfunction)0x1234), 5 * US);
	EQUAL(time_of((CUfunction)((char *)function("gemm") + 8)), 5 * US);

	OK(cuModuleLoadData(&other, "aliquot-sim-module"));
	range = function("busy_10us_to_30us");
	OK(cuModuleGetFunction(&same, other, "busy_10us_to_30us"));
	OK(cuModuleGetFunction(&few, other, "busy_1us_to_2us"));
	for (int i = 0; i < 200; i++) {
		long long t = time_of(range);
		CHECK(t >= (long long)(10 * US) && t <= (long long)(30 * US));
		EQUAL(time_of(same), t);
		time_of(few);
		sum += t;
	}
	CHECK(sum / 200 > (long long)(18 * US) && sum / 200 < (long long)(22 * US));
}

static void check_room(void)
{
	CUfunction f;
	CUevent first, last;

	simulate();
	start();
	f = function("busy_1ms");
	uint64_t begin = now();
	first = record(NULL);
	for (int i = 0; i < 1023; i++)
		OK(launch(f, NULL));
	EQUAL(now() - begin, 0);
	OK(launch(f, NULL)); /* the event is done already, and makes room */
	EQUAL(now() - begin, 0);
	OK(launch(f, NULL));
	EQUAL(now() - begin, MS);
	/* An event keeps its time when its place was used again. */
	for (int i = 0; i < 3000; i++)
		OK(launch(f, NULL));
	last = record(NULL);
	EQUAL(cuEventQuery(last), CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(last));
	EQUAL(elapsed(first, last), 4025 * MS);
	EQUAL(now() - begin, 4025 * MS);
}

static void check_events(void)
{
	CUcontext primary = start(), own;
	CUevent a, b, timeless, foreign;
	CUstream s, t;
	float ms;

	simulate();
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	EQUAL(cuEventCreate(&a, 8), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuEventCreate(&a, CU_EVENT_INTERPROCESS),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuEventCreate(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	a = event(), b = event();
	OK(cuEventQuery(a)); /* never recorded */
	OK(cuEventSynchronize(a));
	EQUAL(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
	EQUAL(cuEventRecord(NULL, s), CUDA_ERROR_INVALID_HANDLE);
	EQUAL(cuEventRecordWithFlags(a, s, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuEventRecordWithFlags(a, s, 0));
	run("busy_10ms", s);
	OK(cuEventRecord(b, s));
	OK(cuEventQuery(a));
	EQUAL(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(b));
	EQUAL(elapsed(a, b), 10 * MS);
	EQUAL(elapsed(b, a), -10 * (long long)MS);
	OK(cuEventElapsedTime_v2(&ms, a, b));
	EQUAL(cuEventElapsedTime(NULL, a, b), CUDA_ERROR_INVALID_VALUE);

	OK(cuEventRecord(a, s)); /* again: the old time is gone */
	OK(cuEventSynchronize(a));
	EQUAL(elapsed(b, a), 0);
	OK(cuEventCreate(&timeless, CU_EVENT_DISABLE_TIMING));
	OK(cuEventRecord(timeless, s));
	OK(cuEventQuery(timeless));
	EQUAL(cuEventElapsedTime(&ms, a, timeless), CUDA_ERROR_INVALID_HANDLE);

	/* A stream that waits for another is not idle before that one is. */
	run("busy_1ms", s);
	OK(cuEventRecord(a, s));
	OK(cuStreamWaitEvent(t, a, 0));
	EQUAL(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
	EQUAL(cuStreamWaitEvent(t, a, 2), CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuStreamWaitEvent(t, a, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuStreamSynchronize(t));
	OK(cuEventQuery(a));

	/* Destroyed while pending, its place is not written to. */
	run("busy_1ms", s);
	OK(cuEventRecord(a, s));
	OK(cuEventDestroy_v2(a));
	EQUAL(cuEventDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
	OK(cuStreamSynchronize(s));

	/* Events belong to a context, and die with it. */
	OK(cuCtxCreate_v2(&own, 0, 0));
	foreign = event();
	EQUAL(cuEventRecord(foreign, s), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(foreign, NULL));
	OK(cuCtxDestroy_v2(own));
	EQUAL(cuEventQuery(foreign), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuEventDestroy_v2(foreign));
	OK(cuDevicePrimaryCtxReset_v2(0));
	OK(cuDevicePrimaryCtxRetain(&own, 0));
	CHECK(own == primary);
	OK(cuCtxSetCurrent(own));
	EQUAL(cuEventQuery(b), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EQUAL(cuEventRecord(b, NULL), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EQUAL(launch(NULL, s), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventDestroy_v2(b));
}

static void *own_stream_in_thread(void *context)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamQuery(CU_STREAM_PER_THREAD));
	EQUAL(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	return NULL;
}

static void check_streams(void)
{
	CUcontext context = start();
	CUstream blocking, free, none = NULL;
	pthread_t thread;
	uint64_t begin;

	simulate();
	OK(cuStreamCreate(&blocking, 0));
	OK(cuStreamCreate(&free, 1));
	run("busy_1ms", free);
	OK(cuStreamQuery(NULL)); /* that stream does not block it */
	OK(cuStreamQuery(blocking));
	run("busy_2ms", blocking);
	EQUAL(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	begin = now();
	OK(cuStreamSynchronize(free)); /* waits for no more than its own */
	EQUAL(now() - begin, MS);
	OK(cuStreamSynchronize(NULL));
	EQUAL(now() - begin, 3 * MS);

	/* Each thread has a stream of its own, which stream 0 means in the
	 * twins of the functions. */
	begin = now();
	OK(cuLaunchKernel_ptsz(function("busy_1ms"), 1, 1, 1, 1, 1, 1, 0, none,
			       NULL, NULL));
	EQUAL(cuStreamQuery_ptsz(none), CUDA_ERROR_NOT_READY);
	EQUAL(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	EQUAL(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	pthread_create(&thread, NULL, own_stream_in_thread, context);
	pthread_join(thread, NULL);
	OK(cuStreamSynchronize_ptsz(none));
	EQUAL(now() - begin, MS);
	OK(cuStreamDestroy_v2(free));
	OK(cuStreamDestroy_v2(blocking));

	/* A context's end waits for its work. */
	begin = now();
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&free, 1));
	run("busy_4ms", free);
	OK(cuCtxDestroy_v2(context));
	EQUAL(now() - begin, 4 * MS);
}

static void check_modules(void)
{
	CUmodule a, b, of;
	CUfunction f, again, g;
	CUlibrary library;
	CUkernel kernel;
	CUcontext context;
	const char *name = "";
	char path[32];
	int fd;

	simulate();
	start();
	used();
	OK(cuModuleLoadData(&a, "aliquot-sim-module bytes=5000000"));
	EQUAL(used(), 6 * MIB);
	OK(cuModuleLoadDataEx(&b, "anything", 0, NULL, NULL));
	EQUAL(used(), 6 * MIB);
	EQUAL(cuModuleLoadData(&of, "aliquot-sim-module bytes=99999999999999"),
	      CUDA_ERROR_OUT_OF_MEMORY);
	EQUAL(cuModuleLoadData(&of, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuModuleGetFunction(&f, a, "busy_1ms"));
	OK(cuModuleGetFunction(&again, a, "busy_1ms"));
	CHECK(f == again);
	OK(cuModuleGetFunction(&g, b, "busy_1ms"));
	CHECK(f != g);
	OK(cuFuncGetModule(&of, g));
	CHECK(of == b);
	OK(cuFuncGetName(&name, g));
	CHECK(strcmp(name, "busy_1ms") == 0);
	OK(cuModuleUnload(a));
	EQUAL(used(), 0);
	EQUAL(cuFuncGetModule(&of, f), CUDA_ERROR_INVALID_HANDLE);
	OK(cuModuleGetFunction(&again, b, "busy_3ms"));
	CHECK(again == f); /* handles are used again, for what takes longer */
	EQUAL(time_of(f), 3 * MS);

	fd = memfd_create("module", 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	CHECK(write(fd, "aliquot-sim-module bytes=2097152\n", 33) == 33);
	OK(cuModuleLoad(&a, path));
	EQUAL(used(), 2 * MIB);
	OK(cuModuleUnload(a));
	OK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
	EQUAL(used(), 2 * MIB);
	close(fd);
	EQUAL(cuModuleLoad(&a, path), CUDA_ERROR_FILE_NOT_FOUND);
	OK(cuLibraryGetKernel(&kernel, library, "busy_2ms"));
	OK(cuKernelGetName(&name, kernel));
	CHECK(strcmp(name, "busy_2ms") == 0);
	EQUAL(time_of((CUfunction)kernel), 2 * MS);
	OK(cuKernelGetFunction(&g, kernel));
	EQUAL(time_of(g), 2 * MS);
	OK(cuLibraryGetModule(&of, library));
	EQUAL(cuModuleUnload(of), CUDA_ERROR_NOT_PERMITTED);
	OK(cuLibraryUnload(library));
	EQUAL(used(), 0);
	EQUAL(cuKernelGetFunction(&g, kernel), CUDA_ERROR_INVALID_HANDLE);

	/* Without a context a library costs nothing until it is used. */
	OK(cuCtxSetCurrent(NULL));
	OK(cuLibraryLoadData(&library, "aliquot-sim-module bytes=1", NULL, NULL,
			     0, NULL, NULL, 0));
	start();
	EQUAL(used(), 0);
	OK(cuLibraryGetKernel(&kernel, library, "busy_2ms"));
	OK(cuKernelGetFunction(&g, kernel));
	EQUAL(used(), 2 * MIB);
	OK(cuLibraryUnload(library));

	/* A module's memory dies with its context. */
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuModuleLoadFatBinary(&a, "aliquot-sim-module bytes=1"));
	EQUAL(used(), 2 * MIB);
	OK(cuCtxDestroy_v2(context));
	EQUAL(used(), 0);
	EQUAL(cuModuleUnload(a), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

/* Two processes that begin at the same time. */
struct pair {
	int in[2], out[2];
	pid_t child;
};

/* Returns twice: true in the child. Each has a context then. */
static bool split(struct pair *pair)
{
	CHECK(pipe(pair->in) == 0 && pipe(pair->out) == 0);
	pair->child = fork();
	start();
	return pair->child == 0;
}

/* Both come to this point before either goes on. */
static void together(const struct pair *pair)
{
	const int *from = pair->child == 0 ? pair->in : pair->out;
	const int *to = pair->child == 0 ? pair->out : pair->in;
	char c = 0;

	CHECK(write(to[1], &c, 1) == 1);
	CHECK(read(from[0], &c, 1) == 1);
}

static void join_child(const struct pair *pair)
{
	int status = 1;

	if (pair->child == 0) {
		fflush(stdout);
		_exit(failures != 0);
	}
	waitpid(pair->child, &status, 0);
	EQUAL(status, 0);
}

static void check_two_processes(void)
{
	struct pair pair;
	CUevent a, b, c;

	simulate();
	split(&pair);
	CUfunction work = function("busy_20ms"), little = function("busy_500us");
	together(&pair);
	a = record(NULL);
	OK(launch(work, NULL));
	b = record(NULL);
	OK(launch(little, NULL));
	c = record(NULL);
	together(&pair);
	OK(cuEventSynchronize(c));
	/* In the middle of what it has itself, it sees the other's slices. */
	CHECK(elapsed(a, b) >= (long long)(36 * MS));
	CHECK(elapsed(a, b) <= (long long)(42 * MS));
	CHECK(elapsed(a, c) <= (long long)(43 * MS));
	EQUAL(elapsed(a, b) % (long long)(500 * US), 0);
	join_child(&pair);
}

static void check_death(void)
{
	struct pair pair;

	simulate();
	if (split(&pair)) {
		run("busy_60000ms", NULL);
		run("meet_1us_2_never", NULL);
		together(&pair);
		together(&pair);
		pause();
	}
	together(&pair);
	uint64_t begin = now();
	run("busy_10ms", NULL);
	OK(cuCtxSynchronize());
	/* Half a card, and perhaps one slice of the other's at the end. */
	CHECK(now() - begin >= 18 * MS && now() - begin <= 22 * MS);
	together(&pair);
	kill(pair.child, 9);
	waitpid(pair.child, NULL, 0);
	*simulated += 10 * MS; /* somebody looks for the dead now and then */
	begin = now();
	run("busy_10ms", NULL);
	OK(cuCtxSynchronize());
	EQUAL(now() - begin, 10 * MS);
}

static void check_meetings(void)
{
	struct pair pair;
	CUstream s, t;
	CUevent a, b;

	simulate();
	bool child = split(&pair);
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	together(&pair);
	if (child) { /* comes when the other has spun for 50 ms */
		together(&pair);
		*simulated += 50 * MS;
		run("meet_1000us_2_key", s);
		OK(cuCtxSynchronize());
		join_child(&pair);
	}
	a = record(s);
	run("meet_1000us_2_key", s);
	b = record(s);
	EQUAL(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	together(&pair);
	OK(cuStreamSynchronize(s));
	/* More, if this process has waited on while the other was to come. */
	CHECK(elapsed(a, b) >= (long long)(51 * MS));
	join_child(&pair);

	/* Two streams of one process meet as well. */
	a = record(s);
	run("meet_1000us_2_streams", s);
	run("meet_1000us_2_streams", t);
	b = record(t);
	OK(cuStreamSynchronize(t));
	EQUAL(elapsed(a, b), 2 * MS);
}

/* The description has four cards. */
static void check_devices(void)
{
	CUcontext context[2];
	CUstream s[2];
	CUevent a, done[2];
	uint64_t begin;

	simulate();
	context[0] = start();
	OK(cuCtxCreate_v2(&context[1], 0, 1));
	begin = now();
	for (int i = 0; i < 2; i++) {
		OK(cuCtxSetCurrent(context[i]));
		OK(cuStreamCreate(&s[i], 1));
		run("busy_10ms", s[i]);
		done[i] = record(s[i]);
	}
	OK(cuStreamSynchronize(s[0]));
	OK(cuStreamSynchronize(s[1]));
	EQUAL(now() - begin, 10 * MS); /* at once */
	a = record(s[1]);
	EQUAL(cuEventElapsedTime((float[]){ 0 }, done[0], a),
	      CUDA_ERROR_INVALID_HANDLE);

	OK(cuCtxSetCurrent(context[0]));
	run("busy_5ms", s[0]);
	OK(cuEventRecord(done[0], s[0]));
	OK(cuCtxSetCurrent(context[1]));
	OK(cuStreamWaitEvent(s[1], done[0], 0));
	run("busy_1ms", s[1]);
	OK(cuEventRecord(done[1], s[1]));
	OK(cuEventSynchronize(done[1]));
	EQUAL(elapsed(a, done[1]), 6 * MS);
	EQUAL(cuEventRecord(done[0], s[1]), CUDA_ERROR_INVALID_HANDLE);

	/* A collective over both. */
	OK(cuCtxSetCurrent(context[0]));
	run("busy_3ms", s[0]);
	run("meet_100us_2_all", s[0]);
	OK(cuCtxSetCurrent(context[1]));
	OK(cuEventRecord(a, s[1]));
	run("meet_100us_2_all", s[1]);
	OK(cuEventRecord(done[1], s[1]));
	OK(cuEventSynchronize(done[1]));
	EQUAL(elapsed(a, done[1]), 3100 * US);
}

#define NVML(name, ...) (((__typeof__(&name))dlsym(nvml, #name))(__VA_ARGS__))

/* NVML in the same process, which reads what libcuda writes. */
static void check_utilization(void)
{
	nvmlProcessUtilizationSample_t sample, none = { .pid = 0 };
	nvmlProcessUtilizationInfo_v1_t info;
	nvmlProcessesUtilizationInfo_t all = { .version = 0 };
	nvmlUtilization_t rates = { 1, 1 };
	nvmlDevice_t device, other;
	unsigned count = 0;

	simulate();
	start();
	CUfunction f = function("busy_3ms");
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	EQUAL(NVML(nvmlInit_v2), NVML_SUCCESS);
	EQUAL(NVML(nvmlDeviceGetHandleByIndex_v2, 0, &device), NVML_SUCCESS);
	EQUAL(NVML(nvmlDeviceGetHandleByIndex_v2, 1, &other), NVML_SUCCESS);
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, NULL, &count, 0),
	      NVML_ERROR_NOT_FOUND);
	for (int i = 0; i < 300; i++) {
		OK(launch(f, NULL));
		*simulated += 10 * MS;
	}
	EQUAL(NVML(nvmlDeviceGetUtilizationRates, device, &rates),
	      NVML_SUCCESS);
	EQUAL(rates.gpu, 30);
	EQUAL(rates.memory, 0);
	EQUAL(NVML(nvmlDeviceGetUtilizationRates, other, &rates), NVML_SUCCESS);
	EQUAL(rates.gpu, 0);

	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, NULL, NULL, 0),
	      NVML_ERROR_INVALID_ARGUMENT);
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, NULL, &count, 0),
	      NVML_ERROR_INSUFFICIENT_SIZE);
	EQUAL(count, 1);
	count = 0;
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, &none, &count, 0),
	      NVML_ERROR_INSUFFICIENT_SIZE);
	EQUAL(none.pid, 0);
	EQUAL(count, 1);
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, &sample, &count, 0),
	      NVML_SUCCESS);
	EQUAL(sample.pid, getpid());
	EQUAL(sample.smUtil, 30);
	EQUAL(sample.memUtil + sample.encUtil + sample.decUtil, 0);
	CHECK(sample.timeStamp > (uint64_t)time(NULL) * 1000000 - 3600000000u);
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, other, &none, &count, 0),
	      NVML_ERROR_NOT_FOUND);
	count = 1;
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, &none, &count,
		   sample.timeStamp),
	      NVML_ERROR_NOT_FOUND); /* nothing newer */
	EQUAL(count, 0);

	EQUAL(NVML(nvmlDeviceGetProcessesUtilizationInfo, device, &all),
	      NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	all.version = NVML_VERSIONED(nvmlProcessesUtilizationInfo_t, 1);
	EQUAL(NVML(nvmlDeviceGetProcessesUtilizationInfo, device, &all),
	      NVML_ERROR_INSUFFICIENT_SIZE);
	EQUAL(all.processSamplesCount, 1);
	all.procUtilArray = &info;
	EQUAL(NVML(nvmlDeviceGetProcessesUtilizationInfo, device, &all),
	      NVML_SUCCESS);
	EQUAL(info.pid, getpid());
	EQUAL(info.smUtil, 30);
	EQUAL(info.timeStamp, sample.timeStamp);

	/* The next note comes a sixth of a second later. */
	*simulated += 150 * MS;
	count = 1;
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, &none, &count,
		   sample.timeStamp),
	      NVML_ERROR_NOT_FOUND);
	*simulated += 17 * MS;
	count = 1;
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, &none, &count,
		   sample.timeStamp),
	      NVML_SUCCESS);
	EQUAL(none.smUtil, 25);
	CHECK(none.timeStamp - sample.timeStamp - 166666 <= 1);
	*simulated += 2000 * MS;
	EQUAL(NVML(nvmlDeviceGetProcessUtilization, device, &none, &count, 0),
	      NVML_ERROR_NOT_FOUND);
	EQUAL(NVML(nvmlDeviceGetUtilizationRates, device, &rates),
	      NVML_SUCCESS);
	EQUAL(rates.gpu, 0);
}

/* Real time: launches and goes on, until it is killed. */
static void storm(void)
{
	CUfunction f[3];
	CUevent e;

	start();
	f[0] = function("busy_10us");
	f[1] = function("busy_50us_to_900us");
	f[2] = function("meet_1us_2_storm");
	e = event();
	printf("ready\n");
	fflush(stdout);
	for (unsigned i = 0; failures == 0; i++) {
		OK(launch(f[i % 7 == 0], NULL));
		if (i % 5 == 0)
			OK(cuEventRecord(e, NULL));
		if (i % 11 == 0)
			cuEventQuery(e);
		if (i % 97 == 0) {
			OK(launch(f[2], NULL));
			OK(launch(f[2], CU_STREAM_PER_THREAD));
		}
		if (i % 501 == 0)
			OK(cuCtxSynchronize());
	}
	exit(1);
}

/* Real time: has the card for so long that nobody will see the end. */
static void load(void)
{
	start();
	run("busy_600000ms", NULL);
	OK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY ? 0 : 1);
	printf("ready\n");
	fflush(stdout);
	pause();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "launches", check_launches },
		{ "names", check_names },
		{ "room", check_room },
		{ "events", check_events },
		{ "streams", check_streams },
		{ "modules", check_modules },
		{ "two processes", check_two_processes },
		{ "death", check_death },
		{ "meetings", check_meetings },
		{ "devices", check_devices },
		{ "utilization", check_utilization },
		{ "storm", storm },
		{ "load", load },
	};

	return RUN_CASE(cases, argc, argv);
}
