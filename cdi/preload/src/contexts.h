/*
 * What contexts cost. The first context of this process on a GPU is charged what
 * the agent says a context costs, until the agent has measured what the process
 * holds beyond its allocations (contexts, code, stacks); then that.
 */
#ifndef AQ_CONTEXTS_H
#define AQ_CONTEXTS_H

#include "functions.h"
#include "share.h"

/* A context that we saw made. */
struct aq_context {
	uint64_t key, value; /* its entry in the table */
	struct aq_gpu *gpu;
};

enum aq_context_kind {
	AQ_CREATED,
	AQ_PRIMARY, /* a device's own: told of at every retain */
	AQ_GREEN,   /* which keeps the primary one alive */
};

/* Before the driver makes a context, or a primary one begins. False: there is
 * no room for it. */
bool aq_context_begin(struct aq_gpu *gpu);

/* After it: the handle that was made, or NULL. */
void aq_context_made(struct aq_gpu *gpu, CUdevice device, const void *handle,
		     enum aq_context_kind kind);

/* Takes a context out before the driver ends it, since afterwards its handle may
 * be another's. False: we did not see it made. */
bool aq_context_take(const void *handle, enum aq_context_kind kind,
		     struct aq_context *context);

/* The driver did not end it, or it did. The last green context may have been all
 * that kept the primary one: that is then returned, else NULL. */
void aq_context_put_back(const struct aq_context *context);
CUcontext aq_context_retire(const struct aq_context *context);

/* Whether the primary context, which lives while anyone holds it, has ended.
 * *context: its handle, or NULL when we did not see it begin. */
bool aq_primary_ended(struct aq_gpu *gpu, CUdevice device, CUcontext *context);

/* Units that a context takes beyond what any takes, such as a larger heap: more
 * of it before it grows, less after it shrank. A context that we did not see made
 * is not charged. */
bool aq_context_grow(CUcontext context, uint32_t units);
void aq_context_shrink(CUcontext context, uint32_t units);

/* Charges what the agent has measured since we last looked. */
void aq_contexts_measure(struct aq_gpu *gpu);

static inline void aq_contexts_look(struct aq_gpu *gpu)
{
	if (AQ_LIKELY(gpu->share_count) &&
	    AQ_UNLIKELY(aq_agent_seq(aq_gpu_share(gpu, 0)) !=
			__atomic_load_n(&gpu->context_seq, __ATOMIC_RELAXED)))
		aq_contexts_measure(gpu);
}

#endif
