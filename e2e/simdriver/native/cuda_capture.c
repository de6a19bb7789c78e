/*
 * Stream capture: a stream that captures hands what is submitted to a graph
 * instead of the card. What a capture cannot see must not happen meanwhile, so
 * a call of that kind fails, and the captures that forbid it are invalid from
 * then on. Which ones those are is a matter of the mode that a capture began
 * with and of the mode of the calling thread.
 */
#include "cuda_capture.h"

#include <stdlib.h>

struct capture *captures;
_Atomic unsigned capture_count;
static _Thread_local int thread_mode
	__attribute__((tls_model("initial-exec"))) =
		CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool forbids(const struct capture *capture)
{
	if (pthread_equal(capture->thread, pthread_self()))
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	if (atomic_load_explicit(&capture_count, memory_order_relaxed) == 0 ||
	    thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	cuda_lock();
	for (struct capture *at = captures; at != NULL; at = at->next) {
		if (!forbids(at))
			continue;
		capture_invalidate(at);
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	cuda_unlock();
	return result;
}

struct capture *capture_implied_locked(CUstream legacy)
{
	for (struct capture *at = captures; at != NULL; at = at->next)
		for (CUstream s = at->streams; s != NULL; s = s->joined)
			if (s->blocking && s->context == legacy->context)
				return at;
	return NULL;
}

CUresult capture_enter_locked(CUstream stream, struct capture **capture)
{
	*capture = stream->capture;
	if (stream->legacy) {
		struct capture *other = capture_implied_locked(stream);
		if (other == NULL)
			return CUDA_SUCCESS;
		capture_invalidate(other);
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return *capture != NULL && (*capture)->status !=
					   CU_STREAM_CAPTURE_STATUS_ACTIVE ?
		       CUDA_ERROR_STREAM_CAPTURE_INVALIDATED :
		       CUDA_SUCCESS;
}

CUresult capture_refuse_locked(CUstream stream)
{
	struct capture *capture;
	CUresult result = capture_enter_locked(stream, &capture);

	if (result != CUDA_SUCCESS || capture == NULL)
		return result;
	capture_invalidate(capture);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* The stream goes on from that node alone. */
static CUresult go_on(CUstream stream, CUgraphNode node)
{
	stream->front.count = 0;
	return node != NULL && nodes_add(&stream->front, node) ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_kernel_locked(CUstream stream, struct kernel *kernel)
{
	CUgraphNode node = graph_add_locked(stream->capture->graph,
					    CU_GRAPH_NODE_TYPE_KERNEL,
					    &stream->front);

	if (node != NULL)
		node->kernel = *kernel;
	return go_on(stream, node);
}

CUresult capture_alloc_locked(CUstream stream, CUdeviceptr *pointer,
			      uint64_t bytes)
{
	CUgraphNode node;
	CUresult result = graph_add_alloc_locked(stream->capture->graph,
						 &stream->front,
						 stream->context->device, bytes,
						 &node);

	if (result != CUDA_SUCCESS)
		return result;
	*pointer = node->memory->region->base;
	return go_on(stream, node);
}

CUresult capture_free_locked(CUstream stream, CUdeviceptr pointer)
{
	CUgraphNode node;
	CUresult result = graph_add_free_locked(stream->capture->graph,
						&stream->front, pointer, &node);

	return result == CUDA_SUCCESS ? go_on(stream, node) : result;
}

CUresult capture_record_locked(CUstream stream, CUevent event, bool external)
{
	if (external) {
		CUgraphNode node = graph_add_locked(
			stream->capture->graph,
			CU_GRAPH_NODE_TYPE_EVENT_RECORD, &stream->front);
		if (node != NULL)
			node->event = event;
		return go_on(stream, node);
	}
	work_forget_event_locked(event);
	event->work = 0;
	event->capture = stream->capture->id;
	return nodes_copy(&event->front, &stream->front) ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_OUT_OF_MEMORY;
}

static struct capture *capture_of(CUevent event)
{
	struct capture *at = captures;

	while (at != NULL && at->id != event->capture)
		at = at->next;
	return at;
}

CUresult capture_query_locked(CUevent event)
{
	struct capture *capture = capture_of(event);

	if (event->capture == 0)
		return CUDA_SUCCESS;
	if (capture != NULL)
		capture_invalidate(capture);
	return CUDA_ERROR_CAPTURED_EVENT;
}

void capture_add_locked(CUstream stream, struct capture *capture)
{
	stream->capture = capture;
	stream->front.count = 0;
	stream->joined = capture->streams;
	capture->streams = stream;
}

/* Waits for an event that was captured: that is how streams join. */
static CUresult join(CUstream stream, CUevent event)
{
	struct capture *capture = capture_of(event);

	if (capture == NULL)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->legacy) {
		capture_invalidate(capture);
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (stream->capture != NULL && stream->capture != capture) {
		capture_invalidate(capture);
		capture_invalidate(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (stream->capture == NULL)
		capture_add_locked(stream, capture);
	for (size_t i = 0; i < event->front.count; i++)
		if (!nodes_add(&stream->front, event->front.at[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

CUresult capture_wait_locked(CUstream stream, CUevent event, bool external,
			     bool *taken)
{
	struct capture *capture;
	CUresult result = capture_enter_locked(stream, &capture);

	*taken = true;
	if (result != CUDA_SUCCESS)
		return result;
	if (external && capture == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (external)
		return go_on(stream,
			     graph_add_locked(capture->graph,
					      CU_GRAPH_NODE_TYPE_WAIT_EVENT,
					      &stream->front));
	if (event->capture != 0)
		return join(stream, event);
	*taken = capture != NULL;
	if (capture == NULL || event->work == 0)
		return CUDA_SUCCESS;
	capture_invalidate(capture);
	return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
}

void capture_end_locked(struct capture *capture)
{
	struct capture **link = &captures;

	while (capture->streams != NULL) {
		CUstream stream = capture->streams;
		capture->streams = stream->joined;
		stream->capture = NULL;
		stream->front.count = 0;
	}
	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	free(capture);
	atomic_fetch_sub(&capture_count, 1);
}

void capture_leave_locked(CUstream stream)
{
	struct capture *capture = stream->capture;

	nodes_clear(&stream->front);
	if (capture == NULL)
		return;
	capture_invalidate(capture);
	CUstream *link = &capture->streams;
	while (*link != stream)
		link = &(*link)->joined;
	*link = stream->joined;
	stream->capture = NULL;
	if (capture->origin == stream) { /* nobody can end it any more */
		graph_free_locked(capture->graph);
		capture_end_locked(capture);
	}
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (mode == NULL || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
	    *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	int old = thread_mode;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}
