/*
 * Checks of stream capture and graphs in the simulated libcuda, one process
 * each: capture_check CASE. As in compute_check.c, who waits for a card makes
 * the clock jump.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "cuda_api.h"

#define MIB ((size_t)1 << 20)
#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum {
	GLOBAL = CU_STREAM_CAPTURE_MODE_GLOBAL,
	THREAD_LOCAL = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
	RELAXED = CU_STREAM_CAPTURE_MODE_RELAXED,
};

#define UNSUPPORTED CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
#define INVALIDATED CUDA_ERROR_STREAM_CAPTURE_INVALIDATED

static _Atomic uint64_t now = UINT64_C(1000000000000);

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	if (clock != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, clock, ts);
	ts->tv_sec = (time_t)(now / 1000000000);
	ts->tv_nsec = (long)(now % 1000000000);
	return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
		    struct timespec *left)
{
	(void)clock, (void)flags, (void)left;
	now = (uint64_t)until->tv_sec * 1000000000 + (uint64_t)until->tv_nsec;
	return 0;
}

static CUcontext context;

static void start(void)
{
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
}

static CUfunction function(const char *name)
{
	static CUmodule module;
	CUfunction made = NULL;

	if (module == NULL)
		OK(cuModuleLoadData(&module, "x"));
	OK(cuModuleGetFunction(&made, module, name));
	return made;
}

static CUresult launch(CUfunction f, CUstream stream)
{
	return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static CUstream stream(unsigned flags)
{
	CUstream made = NULL;

	OK(cuStreamCreate(&made, flags));
	return made;
}

static CUevent event(void)
{
	CUevent made = NULL;

	OK(cuEventCreate(&made, 0));
	return made;
}

static int status_of(CUstream s)
{
	int status = -1;

	OK(cuStreamIsCapturing(s, &status));
	return status;
}

/* Ends the capture, which must give that result, and counts its nodes. */
static size_t end(CUstream s, CUresult want)
{
	CUgraph graph = (CUgraph)1;
	size_t count = 0;

	EQUAL(cuStreamEndCapture(s, &graph), want);
	if (want != CUDA_SUCCESS) {
		CHECK(graph == NULL || want == CUDA_ERROR_ILLEGAL_STATE);
		return 0;
	}
	OK(cuGraphGetNodes(graph, NULL, &count));
	OK(cuGraphDestroy(graph));
	return count;
}

static uint64_t memory(int attribute)
{
	uint64_t value = 0;

	OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
	return value;
}

#define USED memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
#define RESERVED memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)

static size_t used(void)
{
	static size_t first;
	size_t available = 0;

	OK(cuMemGetInfo_v2(&available, NULL));
	if (first == 0)
		first = available;
	return first - available;
}

static void check_capture(void)
{
	CUstream s, other;
	CUfunction f;
	CUevent e;
	CUgraph graph, again;
	CUgraphExec exec;
	const CUgraphNode *front;
	uint64_t id = 0, begin;
	size_t count = 0;
	int status;

	start();
	s = stream(1), other = stream(1), f = function("busy_1ms"), e = event();
	EQUAL(status_of(s), 0);
	EQUAL(cuStreamBeginCapture_v2(NULL, GLOBAL), UNSUPPORTED);
	EQUAL(cuStreamBeginCapture_v2(s, 3), CUDA_ERROR_INVALID_VALUE);
	end(s, CUDA_ERROR_ILLEGAL_STATE);
	begin = now;
	OK(cuStreamBeginCapture_v2(s, GLOBAL));
	EQUAL(cuStreamBeginCapture_v2(s, GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
	EQUAL(status_of(s), 1);
	EQUAL(status_of(other), 0);
	OK(launch(f, s));
	OK(launch(f, s));
	OK(launch(f, other)); /* the other stream goes on as ever */
	OK(cuEventRecord(e, other));
	OK(cuStreamGetCaptureInfo_v2(s, &status, &id, &graph, &front, &count));
	EQUAL(status, 1);
	CHECK(id != 0);
	EQUAL(count, 1);
	OK(cuGraphGetNodes(graph, NULL, &count));
	EQUAL(count, 2);
	OK(cuStreamEndCapture(s, &again));
	CHECK(again == graph);
	EQUAL(status_of(s), 0);
	OK(cuEventSynchronize(e));
	EQUAL(now - begin, MS); /* what was captured has not run */

	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	OK(cuGraphLaunch(exec, s));
	OK(cuGraphLaunch_ptsz(exec, NULL));
	OK(cuStreamSynchronize(s));
	EQUAL(now - begin, 3 * MS);
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	EQUAL(now - begin, 5 * MS);
	OK(cuGraphLaunch(exec, s));
	OK(cuGraphExecDestroy(exec)); /* what was launched goes on */
	EQUAL(cuGraphExecDestroy(NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuStreamSynchronize(s));
	EQUAL(now - begin, 7 * MS);
}

/* One stream of a capture forks others, which must come back. */
static void check_fork(void)
{
	CUstream a, b, c;
	CUevent fork, joined, outside;
	CUfunction f;
	const CUgraphNode *front;
	const CUgraphEdgeData *edges;
	size_t count;
	uint64_t id;
	int status;

	start();
	a = stream(1), b = stream(1), c = stream(1);
	fork = event(), joined = event(), outside = event();
	f = function("busy_1ms");
	OK(cuStreamBeginCapture_v2(a, GLOBAL));
	OK(launch(f, a));
	OK(cuEventRecord(fork, a));
	OK(cuStreamWaitEvent(b, fork, 0));
	EQUAL(status_of(b), 1);
	OK(launch(f, b));
	OK(launch(f, a));
	OK(cuEventRecord(joined, b));
	OK(cuStreamWaitEvent(a, joined, 0));
	OK(cuStreamGetCaptureInfo_v3(a, &status, &id, NULL, &front, &edges,
				     &count));
	EQUAL(count, 2);
	OK(launch(f, a));
	EQUAL(end(a, CUDA_SUCCESS), 4);
	EQUAL(status_of(b), 0);
	EQUAL(cuStreamWaitEvent(c, fork, 0), CUDA_ERROR_CAPTURED_EVENT);

	OK(cuStreamBeginCapture_v2(a, GLOBAL)); /* does not come back */
	OK(cuEventRecord(fork, a));
	OK(cuStreamWaitEvent(b, fork, 0));
	OK(launch(f, b));
	end(a, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	EQUAL(status_of(b), 0);

	OK(cuStreamBeginCapture_v2(a, GLOBAL)); /* ended by another */
	OK(cuEventRecord(fork, a));
	OK(cuStreamWaitEvent(b, fork, 0));
	EQUAL(cuStreamEndCapture(b, (CUgraph[]){ NULL }),
	      CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	end(a, INVALIDATED);

	OK(cuStreamBeginCapture_v2(a, RELAXED)); /* two into one */
	OK(cuStreamBeginCapture_v2(c, RELAXED));
	OK(cuEventRecord(fork, a));
	EQUAL(cuStreamWaitEvent(c, fork, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
	end(a, INVALIDATED);
	end(c, INVALIDATED);

	OK(cuEventRecord(outside, b)); /* from without */
	OK(cuStreamBeginCapture_v2(a, RELAXED));
	EQUAL(cuStreamWaitEvent(a, outside, 0),
	      CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	EQUAL(launch(f, a), INVALIDATED);
	end(a, INVALIDATED);

	OK(cuStreamBeginCapture_v2(a, RELAXED)); /* as nodes */
	OK(cuEventRecordWithFlags(outside, a, CU_EVENT_RECORD_EXTERNAL));
	OK(cuStreamWaitEvent(a, outside, CU_EVENT_WAIT_EXTERNAL));
	EQUAL(end(a, CUDA_SUCCESS), 2);
	OK(cuStreamBeginCapture_v2(a, GLOBAL)); /* the stream goes away */
	OK(cuStreamDestroy_v2(a));
	OK(cuCtxSynchronize());
}

/* Stream 0 would wait for a stream that captures, unless that does not block. */
static void check_legacy(void)
{
	CUstream blocking, free;
	int status;

	start();
	blocking = stream(0), free = stream(1);
	OK(cuStreamBeginCapture_v2(free, RELAXED));
	OK(launch(NULL, NULL));
	OK(cuStreamSynchronize(NULL));
	end(free, CUDA_SUCCESS);
	OK(cuStreamBeginCapture_v2(blocking, RELAXED));
	EQUAL(cuStreamIsCapturing(NULL, &status),
	      CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	EQUAL(status_of(blocking), 1); /* to ask is no harm */
	EQUAL(launch(NULL, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	EQUAL(status_of(blocking), 2);
	end(blocking, INVALIDATED);
	OK(cuStreamBeginCapture_v2(blocking, RELAXED));
	EQUAL(cuStreamSynchronize(NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	end(blocking, INVALIDATED);
}

/* Calls that no capture sees. */
static CUresult unsafe_call(int which)
{
	static CUevent plain;
	static CUdeviceptr p;
	static CUstream other;
	CUmodule module;
	void *host = NULL;
	int mode = RELAXED;

	OK(cuThreadExchangeStreamCaptureMode(&mode));
	if (plain == NULL)
		plain = event(), other = stream(1);
	OK(cuMemAlloc_v2(&p, 1));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	switch (which) {
	case 0:
		return cuEventQuery(plain);
	case 1:
		return cuEventSynchronize(plain);
	case 2:
		return cuStreamQuery(other);
	case 3:
		return cuStreamSynchronize(other);
	case 4:
		return cuCtxSynchronize();
	case 5:
		return cuMemAlloc_v2(&p, 1);
	case 6:
		return cuMemAllocManaged(&p, 1, CU_MEM_ATTACH_GLOBAL);
	case 7:
		return cuMemHostAlloc(&host, 1, 0);
	case 8:
		return cuModuleLoadData(&module, "x");
	case 9:
		return cuMemFree_v2(p);
	}
	return CUDA_ERROR_UNKNOWN;
}
enum { UNSAFE_CALLS = 10 };

struct in_thread {
	int mode, which;
	CUresult result;
};

static void *call_in_thread(void *argument)
{
	struct in_thread *call = argument;

	OK(cuCtxSetCurrent(context));
	OK(cuThreadExchangeStreamCaptureMode(&call->mode));
	EQUAL(call->mode, GLOBAL); /* how every thread begins */
	call->result = unsafe_call(call->which);
	return NULL;
}

static CUresult elsewhere(int thread_mode, int which)
{
	struct in_thread call = { thread_mode, which, CUDA_ERROR_UNKNOWN };
	pthread_t thread;

	pthread_create(&thread, NULL, call_in_thread, &call);
	pthread_join(thread, NULL);
	return call.result;
}

static void check_modes(void)
{
	/* What an unsafe call comes to while a capture of the first mode runs,
	 * in a thread of the second mode: in the one that captures, and in
	 * another. */
	static const struct {
		int capture, thread;
		CUresult here, there;
	} rows[] = {
		{ GLOBAL, GLOBAL, UNSUPPORTED, UNSUPPORTED },
		{ GLOBAL, THREAD_LOCAL, UNSUPPORTED, CUDA_SUCCESS },
		{ GLOBAL, RELAXED, CUDA_SUCCESS, CUDA_SUCCESS },
		{ THREAD_LOCAL, GLOBAL, UNSUPPORTED, CUDA_SUCCESS },
		{ THREAD_LOCAL, THREAD_LOCAL, UNSUPPORTED, CUDA_SUCCESS },
		{ THREAD_LOCAL, RELAXED, CUDA_SUCCESS, CUDA_SUCCESS },
		{ RELAXED, GLOBAL, CUDA_SUCCESS, CUDA_SUCCESS },
		{ RELAXED, THREAD_LOCAL, CUDA_SUCCESS, CUDA_SUCCESS },
		{ RELAXED, RELAXED, CUDA_SUCCESS, CUDA_SUCCESS },
	};
	CUstream s;

	start();
	s = stream(1);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (int which = 0; which < UNSAFE_CALLS; which++) {
			int mode = rows[i].thread, before = failures;
			OK(cuStreamBeginCapture_v2(s, rows[i].capture));
			OK(cuThreadExchangeStreamCaptureMode(&mode));
			EQUAL(unsafe_call(which), rows[i].here);
			EQUAL(status_of(s), rows[i].here == 0 ? 1 : 2);
			OK(cuThreadExchangeStreamCaptureMode(&mode));
			end(s, rows[i].here == 0 ? 0 : INVALIDATED);
			OK(cuStreamBeginCapture_v2(s, rows[i].capture));
			EQUAL(elsewhere(rows[i].thread, which), rows[i].there);
			EQUAL(status_of(s), rows[i].there == 0 ? 1 : 2);
			end(s, rows[i].there == 0 ? 0 : INVALIDATED);
			if (failures != before)
				printf("in row %zu, call %d\n", i, which);
		}
	}
	EQUAL(cuThreadExchangeStreamCaptureMode(NULL),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuThreadExchangeStreamCaptureMode((int[]){ 3 }),
	      CUDA_ERROR_INVALID_VALUE);
}

/* What a capture's own stream and events refuse in any mode. */
static void check_conflicts(void)
{
	CUstream s;
	CUevent e, plain;
	CUgraphExec exec;
	CUgraph graph;
	int mode = RELAXED;

	start();
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	s = stream(1), e = event(), plain = event();
	for (int i = 0; i < 4; i++) {
		OK(cuStreamBeginCapture_v2(s, RELAXED));
		OK(cuEventRecord(e, s));
		OK(cuEventQuery(plain));
		EQUAL(status_of(s), 1);
		if (i == 0)
			EQUAL(cuStreamSynchronize(s), UNSUPPORTED);
		if (i == 1)
			EQUAL(cuStreamQuery(s), UNSUPPORTED);
		if (i == 2)
			EQUAL(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
		if (i == 3)
			EQUAL(cuEventSynchronize(e), CUDA_ERROR_CAPTURED_EVENT);
		EQUAL(launch(NULL, s), INVALIDATED);
		EQUAL(cuEventRecord(e, s), INVALIDATED);
		end(s, INVALIDATED);
	}
	EQUAL(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT); /* for good */
	EQUAL(cuEventElapsedTime((float[]){ 0 }, e, e),
	      CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(e, s)); /* until it is recorded again */
	OK(cuEventQuery(e));

	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
	OK(cuStreamBeginCapture_v2(s, RELAXED));
	EQUAL(cuGraphLaunch(exec, s), UNSUPPORTED);
	end(s, INVALIDATED);
}

static void *end_in_thread(void *s)
{
	OK(cuCtxSetCurrent(context));
	return (void *)(size_t)cuStreamEndCapture(s, (CUgraph[]){ NULL });
}

static void check_threads(void)
{
	pthread_t thread;
	void *result;
	CUstream s;

	start();
	s = stream(1);
	OK(cuStreamBeginCapture_v2(s, THREAD_LOCAL));
	pthread_create(&thread, NULL, end_in_thread, s);
	pthread_join(thread, &result);
	EQUAL((size_t)result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	end(s, CUDA_SUCCESS);
	OK(cuStreamBeginCapture_v2(s, RELAXED));
	pthread_create(&thread, NULL, end_in_thread, s);
	pthread_join(thread, &result);
	EQUAL((size_t)result, CUDA_SUCCESS);
}

static void check_graphs(void)
{
	CUDA_KERNEL_NODE_PARAMS_v2 kernel = { .gridDimX = 1 };
	CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_KERNEL };
	CUDA_GRAPH_INSTANTIATE_PARAMS how = { .flags = 0 };
	CUgraph graph, other;
	CUgraphNode n[8], stranger;
	CUgraphExec exec, twin;
	CUevent before, between, after;
	CUstream s;
	float ms;
	int type;

	start();
	s = stream(1);
	before = event(), between = event(), after = event();
	kernel.func = function("busy_2ms");
	any.kernel.func = function("busy_100us_to_900us");
	EQUAL(cuGraphCreate(&graph, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphCreate(&other, 0));
	OK(cuGraphAddEmptyNode(&n[0], graph, NULL, 0));
	OK(cuGraphAddKernelNode_v2(&n[1], graph, n, 1, &kernel));
	OK(cuGraphAddKernelNode(&n[2], graph, n, 2, &kernel));
	OK(cuGraphAddEventRecordNode(&n[3], graph, &n[2], 1, between));
	OK(cuGraphAddNode(&n[4], graph, n, 4, &any));
	OK(cuGraphAddNode_v2(&n[5], graph, NULL, NULL, 0, &any));
	any.type = 1;
	EQUAL(cuGraphAddNode(&n[6], graph, NULL, 0, &any),
	      CUDA_ERROR_NOT_SUPPORTED);
	OK(cuGraphAddEmptyNode(&stranger, other, NULL, 0));
	EQUAL(cuGraphAddEmptyNode(&n[6], graph, &stranger, 1),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphNodeGetType(n[3], &type));
	EQUAL(type, CU_GRAPH_NODE_TYPE_EVENT_RECORD);

	OK(cuGraphInstantiateWithParams(&exec, graph, &how));
	OK(cuGraphInstantiateWithFlags(&twin, graph, 0));
	EQUAL(cuGraphInstantiateWithFlags(&twin, graph, 16),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphUpload(exec, s));
	OK(cuEventRecord(before, s));
	OK(cuGraphLaunch(exec, s));
	OK(cuEventRecord(after, s));
	EQUAL(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(cuStreamSynchronize(s));
	OK(cuEventElapsedTime(&ms, before, between));
	EQUAL(ms * 1000 + 0.5, 4000);
	OK(cuEventElapsedTime(&ms, before, after));
	CHECK(ms > 4.2f && ms < 5.8f);
	OK(cuGraphDestroy(other));
	EQUAL(cuGraphLaunch(NULL, s), CUDA_ERROR_INVALID_VALUE);
}

static CUDA_MEM_ALLOC_NODE_PARAMS of_size(size_t bytes)
{
	return (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			       .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } },
		.bytesize = bytes,
	};
}

static void check_memory(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS big = of_size(9 * MIB), small = of_size(1);
	CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_MEM_FREE };
	CUgraph graph, keeps;
	CUgraphNode n[8];
	CUgraphExec exec, keeping, second;
	CUdeviceptr base, captured;
	CUstream s;
	uint64_t zero = 0;
	size_t size;

	start();
	used();
	s = stream(1);
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&n[0], graph, NULL, 0, &big));
	OK(cuMemGetAddressRange_v2(&base, &size, big.dptr + 5));
	CHECK(base == big.dptr);
	EQUAL(size, 9 * MIB);
	OK(cuGraphAddMemFreeNode(&n[1], graph, n, 1, big.dptr));
	EQUAL(cuGraphAddMemFreeNode(&n[2], graph, n, 1, big.dptr),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuGraphAddMemFreeNode(&n[2], graph, n, 1, 0x1234),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphAddMemAllocNode(&n[2], graph, &n[1], 1, &small));
	any.free = small.dptr;
	OK(cuGraphAddNode(&n[3], graph, &n[2], 1, &any));
	EQUAL(cuMemFree_v2(big.dptr), CUDA_ERROR_INVALID_VALUE); /* not yet */
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	EQUAL(cuGraphInstantiateWithFlags(&second, graph, 0),
	      CUDA_ERROR_NOT_SUPPORTED);
	EQUAL(used(), 0); /* until the first launch */
	OK(cuGraphLaunch(exec, s));
	EQUAL(used(), 10 * MIB); /* the two are never there at once */
	EQUAL(RESERVED, 10 * MIB);
	OK(cuStreamSynchronize(s));
	EQUAL(USED, 0);
	OK(cuGraphLaunch(exec, s));
	EQUAL(RESERVED, 10 * MIB); /* the same again */

	/* Another leaves its memory to be freed later. */
	OK(cuStreamBeginCapture_v2(s, RELAXED));
	OK(cuMemAllocAsync(&captured, 3 * MIB, s));
	OK(launch(function("busy_1ms"), s));
	OK(cuStreamEndCapture(s, &keeps));
	EQUAL(used(), 10 * MIB);
	OK(cuGraphInstantiateWithFlags(&keeping, keeps, 0));
	OK(cuGraphLaunch(keeping, s));
	EQUAL(cuGraphLaunch(keeping, s), CUDA_ERROR_INVALID_VALUE);
	OK(cuStreamSynchronize(s));
	EQUAL(USED, 4 * MIB);
	EQUAL(RESERVED, 10 * MIB); /* what the first had is enough */
	OK(cuGraphLaunch(exec, s));
	EQUAL(RESERVED, 14 * MIB);
	OK(cuStreamSynchronize(s));
	OK(cuDeviceGraphMemTrim(0));
	EQUAL(RESERVED, 4 * MIB);
	EQUAL(used(), 4 * MIB);
	OK(cuMemFreeAsync(captured, s));
	EQUAL(cuMemFree_v2(captured), CUDA_ERROR_INVALID_VALUE);
	EQUAL(USED, 0);
	OK(cuDeviceGraphMemTrim(0));
	EQUAL(used(), 0);
	EQUAL(memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 14 * MIB);
	EQUAL(memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 14 * MIB);
	OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
					&zero));
	EQUAL(memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0);
	EQUAL(cuDeviceSetGraphMemAttribute(
		      0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero),
	      CUDA_ERROR_INVALID_VALUE);

	/* Or has it freed by the next launch. */
	OK(cuGraphExecDestroy(keeping));
	OK(cuGraphInstantiateWithFlags(
		&keeping, keeps,
		CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	OK(cuGraphUpload(keeping, s));
	EQUAL(used(), 4 * MIB);
	OK(cuGraphLaunch(keeping, s));
	OK(cuDeviceGraphMemTrim(0));
	EQUAL(used(), 4 * MIB); /* in use */
	OK(cuGraphLaunch(keeping, s));
	EQUAL(USED, 4 * MIB);
	OK(cuGraphDestroy(keeps));
	OK(cuGraphExecDestroy(keeping));
	OK(cuStreamSynchronize(s));
	EQUAL(USED, 4 * MIB); /* outlives its graph */
	OK(cuMemFree_v2(captured));
	EQUAL(cuMemFree_v2(captured), CUDA_ERROR_INVALID_VALUE);
	OK(cuDeviceGraphMemTrim(0));
	EQUAL(used(), 0);

	/* More than the card has. */
	OK(cuMemGetInfo_v2(&size, NULL));
	OK(cuMemAlloc_v2(&base, size / (2 * MIB) * (2 * MIB) - 4 * MIB));
	EQUAL(cuGraphLaunch(exec, s), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(base));
	OK(cuGraphLaunch(exec, s));
	big.bytesize = SIZE_MAX;
	EQUAL(cuGraphAddMemAllocNode(&n[4], graph, NULL, 0, &big),
	      CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuGraphDestroy(graph));
	OK(cuGraphLaunch(exec, s));
	OK(cuGraphExecDestroy(exec));
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "capture", check_capture },
		{ "fork", check_fork },
		{ "legacy", check_legacy },
		{ "modes", check_modes },
		{ "conflicts", check_conflicts },
		{ "threads", check_threads },
		{ "graphs", check_graphs },
		{ "memory", check_memory },
	};

	return RUN_CASE(cases, argc, argv);
}
