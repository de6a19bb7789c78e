/*
 * How much a graph needs is the sum of its allocations, counted when it is made
 * executable, however they got into it. That may be more than it has at once:
 * which of them can follow each other in the same place is the driver's to know,
 * and the pool is charged by what it has reserved once the graph is launched.
 */
#include <sys/mman.h>

#include "fork.h"
#include "functions.h"
#include "cost.h"
#include "graph.h"
#include "table.h"

bool aq_graphs_any;

static struct aq_lock graphs_lock;
static struct aq_table execs; /* to units, device and whether launched */

#define DEVICE_SHIFT 32
#define LAUNCHED (UINT64_C(1) << 63) /* so that its memory may be in the pool */

/* What a graph allocates. All of it is on one device. */
struct need {
	uint32_t units;
	CUdevice device;
};

static void count_node(CUgraphNode node, struct need *need)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p;
	int type;

	if (aq_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS ||
	    type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	    aq_real.cuGraphMemAllocNodeGetParams(node, &p) != CUDA_SUCCESS ||
	    p.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return;
	need->device = p.poolProps.location.id;
	if (__builtin_add_overflow(need->units, aq_units(p.bytesize),
				   &need->units))
		need->units = AQ_UNITS_MAX;
}

/* Without memory of our own, or ways to ask, what it needs shows later. */
static struct need need_of(CUgraph graph)
{
	AQ_KEEP_ERRNO;
	struct need need = { 0, 0 };
	size_t count = 0, size;
	CUgraphNode *nodes;

	if (!aq_real.cuGraphGetNodes || !aq_real.cuGraphNodeGetType ||
	    !aq_real.cuGraphMemAllocNodeGetParams ||
	    aq_real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS ||
	    count == 0)
		return need;
	size = count * sizeof(CUgraphNode);
	nodes = mmap(NULL, size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (nodes == MAP_FAILED)
		return need;
	if (aq_real.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			count_node(nodes[i], &need);
	munmap(nodes, size);
	return need;
}

static uint32_t attribute(CUdevice device, int which)
{
	uint64_t bytes = 0;

	if (aq_real.cuDeviceGetGraphMemAttribute(device, which, &bytes) !=
	    CUDA_SUCCESS)
		return 0;
	return aq_units(bytes);
}

/* What the pool lacks for it. What is used there is in its way, but for what it
 * used itself when it was launched before. */
static uint32_t lacking(struct need need, bool launched)
{
	uint32_t reserved = attribute(need.device,
				      CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
	uint32_t used = attribute(need.device,
				  CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
	uint32_t own = launched ? need.units : 0, left;

	used = used > own ? used - own : 0;
	left = reserved > used ? reserved - used : 0;
	return need.units > left ? need.units - left : 0;
}

/* When memory is short the pool itself is trimmed, and lacks more than before. */
static bool reserve_lacking(struct aq_graph_call *call, struct need need,
			    bool launched)
{
	uint32_t units = lacking(need, launched), now;

	if (!aq_pool_reserve(call->pool, &call->hold, units))
		return false;
	now = lacking(need, launched);
	if (now <= units)
		return true;
	aq_pool_settle(call->pool, &call->hold, false);
	return aq_pool_reserve(call->pool, &call->hold, now);
}

static bool reserve(struct aq_graph_call *call, struct need need,
		    bool launched)
{
	struct aq_gpu *gpu = NULL;

	call->pool = NULL;
	if (need.units == 0 || !aq_real.cuDeviceGetGraphMemAttribute ||
	    aq_gpu_of_device(need.device, &gpu) != CUDA_SUCCESS || !gpu)
		return true;
	call->pool = aq_pool_begin_graphs(need.device, gpu);
	if (!call->pool)
		return false;
	if (reserve_lacking(call, need, launched))
		return true;
	aq_pool_end(call->pool);
	call->pool = NULL;
	return false;
}

/* A graph that runs cannot be undone: what it took is charged, room or not. */
static void settle(struct aq_graph_call *call, bool success)
{
	if (!call->pool)
		return;
	aq_pool_settle(call->pool, &call->hold, success);
	aq_pool_end(call->pool);
}

/* What is known of an executable graph; false: it has no memory, or none on a
 * limited GPU. */
static bool look_up(CUgraphExec exec, struct need *need, bool *launched)
{
	struct aq_entry *entry;

	aq_lock(&graphs_lock);
	entry = aq_table_find(&execs, (uintptr_t)exec);
	if (entry) {
		need->units = (uint32_t)entry->value;
		need->device = (CUdevice)(entry->value >> DEVICE_SHIFT & 0xffff);
		*launched = entry->value & LAUNCHED;
	}
	aq_unlock(&graphs_lock);
	return entry != NULL;
}

bool aq_graph_reserve(struct aq_graph_call *call, CUgraphExec exec)
{
	struct need need;
	bool launched;

	return !exec || !look_up(exec, &need, &launched) ||
	       reserve(call, need, launched);
}

void aq_graph_settle(struct aq_graph_call *call, CUgraphExec exec, bool success)
{
	struct aq_entry *entry;

	settle(call, success);
	aq_lock(&graphs_lock);
	entry = aq_table_find(&execs, (uintptr_t)exec);
	if (entry && success)
		entry->value |= LAUNCHED;
	aq_unlock(&graphs_lock);
}

static void put(CUgraphExec exec, uint64_t value)
{
	struct aq_entry *entry;

	aq_lock(&graphs_lock);
	entry = aq_table_find(&execs, (uintptr_t)exec);
	if (entry)
		entry->value = value; /* we missed the other's end */
	else if (aq_table_make_room(&execs, 1))
		aq_table_put(&execs, (uintptr_t)exec, value);
	__atomic_store_n(&aq_graphs_any, true, __ATOMIC_RELAXED);
	aq_unlock(&graphs_lock);
}

static void record(CUgraphExec exec, struct need need, bool launched)
{
	struct aq_gpu *gpu = NULL;

	if (need.units && aq_gpu_of_device(need.device, &gpu) == CUDA_SUCCESS &&
	    gpu)
		put(exec, need.units |
				  (uint64_t)(need.device & 0xffff)
					  << DEVICE_SHIFT |
				  (launched ? LAUNCHED : 0));
}

#define INSTANTIATE(name, parameters, arguments)                       \
	CUresult name parameters                                       \
	{                                                              \
		struct need need;                                      \
		CUresult result;                                       \
								       \
		AQ_ENTER(name);                                        \
		need = need_of(graph);                                 \
		result = aq_real.name arguments;                       \
		if (result == CUDA_SUCCESS)                            \
			record(*exec, need, false);                    \
		return result;                                         \
	}

INSTANTIATE(cuGraphInstantiate,
	    (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
	     size_t size),
	    (exec, graph, error, log, size))
INSTANTIATE(cuGraphInstantiate_v2,
	    (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
	     size_t size),
	    (exec, graph, error, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags,
	    (CUgraphExec *exec, CUgraph graph, unsigned long long flags),
	    (exec, graph, flags))

/* This one may upload the graph too. */
#define INSTANTIATE_WITH_PARAMS(name)                                         \
	CUresult name(CUgraphExec *exec, CUgraph graph,                       \
		      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)              \
	{                                                                     \
		struct aq_graph_call call = { .pool = NULL };                 \
		bool uploads;                                                 \
		struct need need;                                             \
		CUresult result;                                              \
									      \
		AQ_ENTER(name);                                               \
		need = need_of(graph);                                        \
		uploads = parameters && parameters->flags &                   \
				CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;           \
		if (uploads && !reserve(&call, need, false))                  \
			return CUDA_ERROR_OUT_OF_MEMORY;                      \
		result = aq_real.name(exec, graph, parameters);               \
		settle(&call, result == CUDA_SUCCESS);                        \
		if (result == CUDA_SUCCESS)                                   \
			record(*exec, need, false);                           \
		return result;                                                \
	}

INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams)
INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams_ptsz)

#define UPLOAD(name)                                             \
	CUresult name(CUgraphExec exec, CUstream stream)         \
	{                                                        \
		struct aq_graph_call call;                       \
		CUresult result;                                 \
								 \
		AQ_ENTER(name);                                  \
		if (!aq_graph_begin(&call, exec))                \
			return CUDA_ERROR_OUT_OF_MEMORY;         \
		result = aq_real.name(exec, stream);             \
		if (call.pool)                                   \
			settle(&call, result == CUDA_SUCCESS);   \
		return result;                                   \
	}

UPLOAD(cuGraphUpload)
UPLOAD(cuGraphUpload_ptsz)

/* Out before the call, since afterwards the handle may be another's. */
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct aq_entry *entry;
	uint64_t value = 0;
	CUresult result;

	AQ_ENTER(cuGraphExecDestroy);
	aq_lock(&graphs_lock);
	entry = exec ? aq_table_find(&execs, (uintptr_t)exec) : NULL;
	if (entry) {
		value = entry->value;
		aq_table_remove(&execs, entry);
	}
	aq_unlock(&graphs_lock);
	result = aq_real.cuGraphExecDestroy(exec);
	if (result == CUDA_SUCCESS)
		aq_cost_forget_graph(exec);
	if (value && result != CUDA_SUCCESS)
		put(exec, value);
	return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	struct aq_gpu *gpu = NULL;
	CUresult result;

	AQ_ENTER(cuDeviceGraphMemTrim);
	result = aq_real.cuDeviceGraphMemTrim(device);
	if (result == CUDA_SUCCESS &&
	    aq_gpu_of_device(device, &gpu) == CUDA_SUCCESS && gpu)
		aq_pools_refresh(gpu);
	return result;
}

void aq_graphs_forked(void)
{
	aq_lock_reset(&graphs_lock);
	aq_table_clear(&execs);
	aq_graphs_any = false;
}
