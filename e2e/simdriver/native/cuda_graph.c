/* Graphs and their nodes. A node only depends on older ones, so the order in
 * which they were added is one in which they can run. */
#include "cuda_work.h"

#include <stdlib.h>
#include <string.h>

bool nodes_add(struct nodes *nodes, CUgraphNode node)
{
	if (nodes->count == nodes->room) {
		size_t room = nodes->room == 0 ? 4 : nodes->room * 2;
		CUgraphNode *grown = realloc(nodes->at, room * sizeof(*grown));
		if (grown == NULL)
			return false;
		nodes->at = grown;
		nodes->room = room;
	}
	nodes->at[nodes->count++] = node;
	return true;
}

bool nodes_copy(struct nodes *to, const struct nodes *from)
{
	to->count = 0;
	for (size_t i = 0; i < from->count; i++)
		if (!nodes_add(to, from->at[i]))
			return false;
	return true;
}

void nodes_clear(struct nodes *nodes)
{
	free(nodes->at);
	*nodes = (struct nodes){ NULL, 0, 0 };
}

CUgraph graph_new_locked(void)
{
	CUgraph graph = calloc(1, sizeof(*graph));

	if (graph != NULL)
		graph->magic = GRAPH_MAGIC;
	return graph;
}

static void free_node(CUgraphNode node)
{
	if (node->memory != NULL)
		graph_memory_drop_locked(node->memory);
	nodes_clear(&node->before);
	free(node);
}

void graph_free_locked(CUgraph graph)
{
	if (graph->exec != NULL)
		exec_forget_graph_locked(graph->exec);
	for (size_t i = 0; i < graph->nodes.count; i++)
		free_node(graph->nodes.at[i]);
	nodes_clear(&graph->nodes);
	graph->magic = 0;
	free(graph);
}

CUgraphNode graph_add_locked(CUgraph graph, int type,
			     const struct nodes *before)
{
	CUgraphNode node = calloc(1, sizeof(*node));

	if (node == NULL)
		return NULL;
	node->type = type;
	node->graph = graph;
	if (!nodes_copy(&node->before, before) ||
	    !nodes_add(&graph->nodes, node)) {
		free_node(node);
		return NULL;
	}
	return node;
}

CUresult graph_add_alloc_locked(CUgraph graph, const struct nodes *before,
				CUdevice device, uint64_t bytes,
				CUgraphNode *node)
{
	if (bytes == 0 || (graph->memory && graph->device != device))
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > cuda.devices[device].capacity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct graph_memory *memory = graph_memory_new_locked(device, bytes);
	if (memory == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*node = graph_add_locked(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, before);
	if (*node == NULL) {
		graph_memory_drop_locked(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	(*node)->memory = memory;
	graph->memory = true;
	graph->device = device;
	return CUDA_SUCCESS;
}

/* Memory of another graph can be freed too, but no other memory. */
CUresult graph_add_free_locked(CUgraph graph, const struct nodes *before,
			       CUdeviceptr pointer, CUgraphNode *node)
{
	struct graph_memory *memory = graph_memory_find_locked(pointer);

	if (memory == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->nodes.count; i++)
		if (graph->nodes.at[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
		    graph->nodes.at[i]->memory == memory)
			return CUDA_ERROR_INVALID_VALUE;
	*node = graph_add_locked(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, before);
	if (*node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*node)->memory = memory;
	memory->references++;
	graph->memory = true;
	graph->device = memory->region->device;
	return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (graph == NULL || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	*graph = graph_new_locked();
	cuda_unlock();
	return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult graph_check(CUgraph graph)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	return graph != NULL && graph->magic == GRAPH_MAGIC ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult result = graph_check(graph);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	graph_free_locked(graph);
	cuda_unlock();
	return CUDA_SUCCESS;
}

/* Without an array: how many there are. */
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult result = graph_check(graph);

	if (result != CUDA_SUCCESS)
		return result;
	if (count == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (nodes == NULL)
		*count = graph->nodes.count;
	for (size_t i = 0; nodes != NULL && i < *count; i++)
		nodes[i] = i < graph->nodes.count ? graph->nodes.at[i] : NULL;
	if (*count > graph->nodes.count)
		*count = graph->nodes.count;
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (node == NULL || type == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->type;
	return CUDA_SUCCESS;
}

static CUresult add_alloc(CUgraph graph, const struct nodes *before,
			  CUDA_MEM_ALLOC_NODE_PARAMS *parameters,
			  CUgraphNode *node)
{
	const CUmemLocation *location = &parameters->poolProps.location;

	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!cuda_is_device(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = graph_add_alloc_locked(graph, before, location->id,
						 parameters->bytesize, node);
	if (result == CUDA_SUCCESS)
		parameters->dptr = (*node)->memory->region->base;
	return result;
}

static CUresult add_locked(CUgraph graph, const struct nodes *before,
			   CUgraphNodeParams *parameters, CUgraphNode *node)
{
	switch (parameters->type) {
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return add_alloc(graph, before, &parameters->alloc, node);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return graph_add_free_locked(graph, before, parameters->free,
					     node);
	case CU_GRAPH_NODE_TYPE_KERNEL:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
	case CU_GRAPH_NODE_TYPE_EMPTY:
		break;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	*node = graph_add_locked(graph, parameters->type, before);
	if (*node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (parameters->type == CU_GRAPH_NODE_TYPE_KERNEL)
		(*node)->kernel = *kernel_of_locked(
			parameters->kernel.func != NULL ?
				parameters->kernel.func :
				(CUfunction)parameters->kernel.kern);
	if (parameters->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		(*node)->event = parameters->event;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph,
			   const CUgraphNode *dependencies,
			   const CUgraphEdgeData *edges, size_t count,
			   CUgraphNodeParams *parameters)
{
	struct nodes before = { (CUgraphNode *)dependencies, count, count };
	CUresult result = graph_check(graph);
	CUgraphNode made;

	(void)edges;
	if (result != CUDA_SUCCESS)
		return result;
	if (node == NULL || parameters == NULL ||
	    (dependencies == NULL && count != 0))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (dependencies[i] == NULL || dependencies[i]->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = add_locked(graph, &before, parameters, &made);
	cuda_unlock();
	if (result == CUDA_SUCCESS)
		*node = made;
	return result;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph,
			const CUgraphNode *dependencies, size_t count,
			CUgraphNodeParams *parameters)
{
	return cuGraphAddNode_v2(node, graph, dependencies, NULL, count,
				 parameters);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph,
			     const CUgraphNode *dependencies, size_t count)
{
	CUgraphNodeParams all = { .type = CU_GRAPH_NODE_TYPE_EMPTY };

	return cuGraphAddNode(node, graph, dependencies, count, &all);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
				 const CUgraphNode *dependencies, size_t count,
				 const CUDA_KERNEL_NODE_PARAMS_v2 *parameters)
{
	CUgraphNodeParams all = { .type = CU_GRAPH_NODE_TYPE_KERNEL };

	if (parameters == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	all.kernel = *parameters;
	return cuGraphAddNode(node, graph, dependencies, count, &all);
}

/* The first version's parameters end before the second's do. */
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph,
			      const CUgraphNode *dependencies, size_t count,
			      const void *parameters)
{
	CUgraphNodeParams all = { .type = CU_GRAPH_NODE_TYPE_KERNEL };

	if (parameters == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&all.kernel, parameters,
	       offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kern));
	return cuGraphAddNode(node, graph, dependencies, count, &all);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph,
				   const CUgraphNode *dependencies,
				   size_t count, CUevent event)
{
	CUgraphNodeParams all = { .type = CU_GRAPH_NODE_TYPE_EVENT_RECORD };
	CUresult result = event_check(event);

	if (result != CUDA_SUCCESS)
		return result;
	all.event = event;
	return cuGraphAddNode(node, graph, dependencies, count, &all);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
				const CUgraphNode *dependencies, size_t count,
				CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	CUgraphNodeParams all = { .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC };

	if (parameters == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	all.alloc = *parameters;
	CUresult result =
		cuGraphAddNode(node, graph, dependencies, count, &all);
	if (result == CUDA_SUCCESS)
		parameters->dptr = all.alloc.dptr;
	return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph,
			       const CUgraphNode *dependencies, size_t count,
			       CUdeviceptr pointer)
{
	CUgraphNodeParams all = { .type = CU_GRAPH_NODE_TYPE_MEM_FREE };

	all.free = pointer;
	return cuGraphAddNode(node, graph, dependencies, count, &all);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node,
				      CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (node == NULL || parameters == NULL ||
	    node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	const struct region *region = node->memory->region;
	*parameters = (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = {
			.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = { CU_MEM_LOCATION_TYPE_DEVICE,
				      region->device },
		},
		.bytesize = region->bytes,
		.dptr = region->base,
	};
	cuda_unlock();
	return CUDA_SUCCESS;
}
