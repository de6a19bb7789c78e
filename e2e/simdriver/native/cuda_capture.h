/* What the files about stream capture share. */
#ifndef SIM_CUDA_CAPTURE_H
#define SIM_CUDA_CAPTURE_H

#include <stdatomic.h>

#include "cuda_work.h"

struct capture {
	uint64_t id;
	int mode, status;
	pthread_t thread;
	CUgraph graph;
	CUstream origin, streams; /* the origin is one of them */
	struct capture *next;
};

extern struct capture *captures;
extern _Atomic unsigned capture_count; /* so that most calls take no lock */

static inline void capture_invalidate(struct capture *capture)
{
	capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

/* The capture of a stream that stream 0 would wait for, or NULL. */
struct capture *capture_implied_locked(CUstream legacy);
void capture_add_locked(CUstream stream, struct capture *capture);
/* Lets its streams go. The graph stays. */
void capture_end_locked(struct capture *capture);

#endif
