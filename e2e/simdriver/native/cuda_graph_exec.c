/*
 * Executable graphs. A launch is one piece of work as long as its functions run;
 * where one of them meets others, or an event wants to know the time, it is cut
 * there.
 */
#include "cuda_work.h"

#include <stdlib.h>

#define EXEC_MAGIC 0x45584543u

struct step {
	int type;
	struct kernel kernel;
	CUevent event;
	struct graph_memory *memory;
};

struct CUgraphExec_st {
	uint32_t magic;
	unsigned long long flags;
	CUgraph graph; /* of one with memory, while it lives */
	CUdevice device; /* of its memory */
	bool memory;
	uint64_t most; /* bytes of its memory at one time */
	size_t count;
	struct step steps[];
};

/* The most that the graph's nodes have at once, in whole blocks. */
static uint64_t most_memory(CUgraphExec exec)
{
	uint64_t now = 0, most = 0;

	for (size_t i = 0; i < exec->count; i++) {
		const struct step *step = &exec->steps[i];
		if (step->memory == NULL)
			continue;
		uint64_t span = step->memory->region->span;
		if (step->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			now += span;
		else /* what it frees may be another graph's */
			now -= now < span ? now : span;
		if (now > most)
			most = now;
	}
	return most;
}

static CUgraphExec make_locked(CUgraph graph, unsigned long long flags)
{
	size_t count = graph->nodes.count;
	CUgraphExec exec =
		calloc(1, sizeof(*exec) + count * sizeof(exec->steps[0]));

	if (exec == NULL)
		return NULL;
	exec->magic = EXEC_MAGIC;
	exec->flags = flags;
	exec->count = count;
	for (size_t i = 0; i < count; i++) {
		const struct CUgraphNode_st *node = graph->nodes.at[i];
		exec->steps[i] = (struct step){ node->type, node->kernel,
						node->event, node->memory };
		if (node->memory != NULL)
			node->memory->references++;
	}
	exec->most = most_memory(exec);
	exec->memory = graph->memory;
	exec->device = graph->device;
	if (graph->memory) {
		exec->graph = graph;
		graph->exec = exec;
	}
	return exec;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph,
			    unsigned long long flags)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (exec == NULL || graph == NULL || graph->magic != GRAPH_MAGIC ||
	    flags > 15)
		return CUDA_ERROR_INVALID_VALUE;
	if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	cuda_lock();
	if (graph->exec != NULL) { /* its memory can have only one user */
		result = CUDA_ERROR_NOT_SUPPORTED;
	} else {
		*exec = make_locked(graph, flags);
		if (*exec == NULL)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	cuda_unlock();
	return result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph,
			       CUgraphNode *error, char *log, size_t log_size)
{
	if (error != NULL)
		*error = NULL;
	if (log != NULL && log_size > 0)
		log[0] = '\0';
	return instantiate(exec, graph, 0);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
				     unsigned long long flags)
{
	if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0)
		return CUDA_ERROR_INVALID_VALUE; /* names no stream */
	return instantiate(exec, graph, flags);
}

static CUresult with_parameters(CUgraphExec *exec, CUgraph graph,
				CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
				bool ptsz)
{
	if (parameters == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUstream stream = ptsz ? per_thread(parameters->hUploadStream) :
				 parameters->hUploadStream;
	CUresult result = instantiate(exec, graph, parameters->flags);
	if (result == CUDA_SUCCESS &&
	    (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
		result = cuGraphUpload(*exec, stream);
		if (result != CUDA_SUCCESS)
			cuGraphExecDestroy(*exec);
	}
	parameters->hErrNode_out = NULL;
	parameters->result_out = result != CUDA_SUCCESS;
	return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return with_parameters(exec, graph, parameters, false);
}

CUresult
cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
				  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return with_parameters(exec, graph, parameters, true);
}

static CUresult exec_check(CUgraphExec exec)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	return exec != NULL && exec->magic == EXEC_MAGIC ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
}

static CUresult reserve_locked(CUgraphExec exec)
{
	return !exec->memory ||
			       graph_memory_reserve_locked(exec->device,
							   exec->most) ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_OUT_OF_MEMORY;
}

/* Takes the memory that the first launch would. */
CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
	CUresult result = exec_check(exec);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL)
		result = capture_refuse_locked(stream);
	if (result == CUDA_SUCCESS)
		result = reserve_locked(exec);
	cuda_unlock();
	return result;
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphUpload(exec, per_thread(stream));
}

/* What an earlier launch left allocated must be gone before the next. */
static CUresult free_left_locked(CUgraphExec exec)
{
	bool automatic =
		(exec->flags &
		 CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;

	for (size_t i = 0; i < exec->count; i++) {
		struct step *step = &exec->steps[i];
		if (step->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
		    !step->memory->live)
			continue;
		if (!automatic)
			return CUDA_ERROR_INVALID_VALUE;
		graph_memory_set_live_locked(step->memory, false);
	}
	return CUDA_SUCCESS;
}

/* What the launch itself does, up to the first thing that is more than time. */
static CUresult run_locked(CUgraphExec exec, CUstream stream)
{
	struct piece sum = { COMPUTE_BUSY, .event = NULL }, piece;
	CUresult result = CUDA_SUCCESS;
	bool pending = true; /* a graph of nothing is still launched */

	for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
		struct step *step = &exec->steps[i];
		bool event = step->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
		if (!event && step->type != CU_GRAPH_NODE_TYPE_KERNEL)
			continue;
		if (!event)
			result = kernel_piece_locked(
				&step->kernel, stream->context->device, &piece);
		if (!event && piece.kind == COMPUTE_BUSY) {
			sum.duration += piece.duration;
			pending = true;
			continue;
		}
		if (result == CUDA_SUCCESS && sum.duration > 0)
			result = work_push_locked(stream, &sum);
		sum.duration = 0;
		pending = false;
		if (result == CUDA_SUCCESS)
			result = event ? event_push_locked(stream, step->event) :
					 work_push_locked(stream, &piece);
	}
	if (result == CUDA_SUCCESS && pending)
		result = work_push_locked(stream, &sum);
	return result;
}

static CUresult launch_locked(CUgraphExec exec, CUstream stream)
{
	CUresult result = free_left_locked(exec);

	if (result == CUDA_SUCCESS)
		result = reserve_locked(exec);
	if (result == CUDA_SUCCESS)
		result = run_locked(exec, stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (exec->memory)
		graph_memory_launched_locked(exec->device, exec->most,
					     stream->last_work);
	for (size_t i = 0; i < exec->count; i++)
		if (exec->steps[i].memory != NULL)
			graph_memory_set_live_locked(
				exec->steps[i].memory,
				exec->steps[i].type ==
					CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	CUresult result = exec_check(exec);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL)
		result = capture_refuse_locked(stream);
	if (result == CUDA_SUCCESS)
		result = launch_locked(exec, stream);
	cuda_unlock();
	return result;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphLaunch(exec, per_thread(stream));
}

void exec_forget_graph_locked(CUgraphExec exec)
{
	exec->graph = NULL;
}

/* What was launched goes on. */
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult result = exec_check(exec);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	for (size_t i = 0; i < exec->count; i++)
		if (exec->steps[i].memory != NULL)
			graph_memory_drop_locked(exec->steps[i].memory);
	if (exec->graph != NULL)
		exec->graph->exec = NULL;
	exec->magic = 0;
	free(exec);
	cuda_unlock();
	return CUDA_SUCCESS;
}
