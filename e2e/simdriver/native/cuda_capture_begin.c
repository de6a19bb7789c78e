/* Beginning and ending a capture, and what can be asked of one. */
#include "cuda_capture.h"

#include <stdlib.h>

static CUresult begin_locked(CUstream stream, int mode)
{
	static uint64_t ids;

	if (stream->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture != NULL)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct capture *capture = calloc(1, sizeof(*capture));
	if (capture == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture->graph = graph_new_locked();
	if (capture->graph == NULL) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->id = ++ids;
	capture->mode = mode;
	capture->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	capture->thread = pthread_self();
	capture->origin = stream;
	capture_add_locked(stream, capture);
	capture->next = captures;
	captures = capture;
	atomic_fetch_add(&capture_count, 1);
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
	CUresult result;

	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL && (mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
			       mode > CU_STREAM_CAPTURE_MODE_RELAXED))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (stream != NULL)
		result = begin_locked(stream, mode);
	cuda_unlock();
	return result;
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	return cuStreamBeginCapture_v2(per_thread(stream), mode);
}

static void mark_ancestors(CUgraphNode node, unsigned mark)
{
	if (node->mark == mark)
		return;
	node->mark = mark;
	for (size_t i = 0; i < node->before.count; i++)
		mark_ancestors(node->before.at[i], mark);
}

/* Whether all that other streams captured comes before what the origin did. */
static bool is_joined(struct capture *capture)
{
	unsigned mark = ++capture->graph->marks;
	const struct nodes *last = &capture->origin->front;

	for (size_t i = 0; i < last->count; i++)
		mark_ancestors(last->at[i], mark);
	for (CUstream s = capture->streams; s != NULL; s = s->joined)
		for (size_t i = 0; i < s->front.count; i++)
			if (s->front.at[i]->mark != mark)
				return false;
	return true;
}

static CUresult end_locked(CUstream stream, CUgraph *graph)
{
	struct capture *capture = stream->capture;
	CUresult result = CUDA_SUCCESS;

	*graph = NULL;
	if (capture == NULL)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream) {
		capture_invalidate(capture);
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!is_joined(capture))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	else
		*graph = capture->graph;
	if (*graph == NULL)
		graph_free_locked(capture->graph);
	capture_end_locked(capture);
	return result;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	CUresult result;

	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL && graph == NULL)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (stream != NULL)
		result = end_locked(stream, graph);
	cuda_unlock();
	return result;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return cuStreamEndCapture(per_thread(stream), graph);
}

struct capture_info {
	int status;
	uint64_t id;
	CUgraph graph;
	const struct nodes *front;
};

/* To ask of stream 0 while it would have to wait for a capture is an error, but
 * spoils nothing. */
static CUresult info_of(CUstream handle, struct capture_info *info)
{
	CUresult result;

	*info = (struct capture_info){ CU_STREAM_CAPTURE_STATUS_NONE };
	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL && stream->legacy && capture_implied_locked(stream) != NULL) {
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	} else if (stream != NULL) {
		result = CUDA_SUCCESS;
		if (stream->capture != NULL)
			*info = (struct capture_info){
				stream->capture->status, stream->capture->id,
				stream->capture->graph, &stream->front
			};
	}
	cuda_unlock();
	return result;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	struct capture_info info;
	CUresult result = info_of(stream, &info);

	if (result == CUDA_SUCCESS && status == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*status = info.status;
	return result;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	return cuStreamIsCapturing(per_thread(stream), status);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id,
				   CUgraph *graph,
				   const CUgraphNode **dependencies,
				   const CUgraphEdgeData **edges, size_t *count)
{
	struct capture_info info;
	CUresult result = info_of(stream, &info);

	if (result != CUDA_SUCCESS)
		return result;
	if (status == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*status = info.status;
	if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_SUCCESS;
	if (id != NULL)
		*id = info.id;
	if (graph != NULL)
		*graph = info.graph;
	if (dependencies != NULL)
		*dependencies = info.front->at;
	if (edges != NULL)
		*edges = NULL; /* all edges are plain ones */
	if (count != NULL)
		*count = info.front->count;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *status,
					uint64_t *id, CUgraph *graph,
					const CUgraphNode **dependencies,
					const CUgraphEdgeData **edges,
					size_t *count)
{
	return cuStreamGetCaptureInfo_v3(per_thread(stream), status, id, graph,
					 dependencies, edges, count);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id,
				   CUgraph *graph,
				   const CUgraphNode **dependencies,
				   size_t *count)
{
	return cuStreamGetCaptureInfo_v3(stream, status, id, graph,
					 dependencies, NULL, count);
}

CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *status,
					uint64_t *id, CUgraph *graph,
					const CUgraphNode **dependencies,
					size_t *count)
{
	return cuStreamGetCaptureInfo_v3(per_thread(stream), status, id, graph,
					 dependencies, NULL, count);
}
