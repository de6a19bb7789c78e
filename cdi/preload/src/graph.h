/*
 * Memory that graphs allocate. The driver takes it when a graph is uploaded or
 * launched that needs more than there is, out of a pool of the device, which is
 * charged like any pool (pool.h).
 */
#ifndef AQ_GRAPH_H
#define AQ_GRAPH_H

#include "pool.h"

/* A call that may make the pool grow, from before it to after it. */
struct aq_graph_call {
	struct aq_pool *pool; /* NULL: nothing to charge */
	struct aq_hold hold;
};

/* Whether any graph of this process has memory on a limited GPU. */
extern bool aq_graphs_any;

bool aq_graph_reserve(struct aq_graph_call *call, CUgraphExec exec);
void aq_graph_settle(struct aq_graph_call *call, CUgraphExec exec, bool success);

/* Around a launch or an upload. False: there is no room for its memory. */
static inline bool aq_graph_begin(struct aq_graph_call *call, CUgraphExec exec)
{
	call->pool = NULL;
	return __builtin_expect(!__atomic_load_n(&aq_graphs_any,
						 __ATOMIC_RELAXED), 1) ||
	       aq_graph_reserve(call, exec);
}

static inline void aq_graph_end(struct aq_graph_call *call, CUgraphExec exec,
				CUresult result)
{
	if (__builtin_expect(call->pool != NULL, 0))
		aq_graph_settle(call, exec, result == CUDA_SUCCESS);
}

#endif
