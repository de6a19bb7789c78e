/*
 * Events. One is an entry of the lane that takes no time, so its time is when
 * the card came to it: after what the stream had before, and not before the
 * process had its turn.
 */
#include "cuda_work.h"

#include <stdlib.h>

#define RESOLUTION 500 /* ns, of cuEventElapsedTime */

CUresult event_check(CUevent event)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (event == NULL || event->magic != EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!event->context->alive ||
	    event->incarnation != event->context->incarnation)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (event == NULL ||
	    flags > (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |
		     CU_EVENT_INTERPROCESS) ||
	    ((flags & CU_EVENT_INTERPROCESS) != 0 &&
	     (flags & CU_EVENT_DISABLE_TIMING) == 0))
		return CUDA_ERROR_INVALID_VALUE;
	CUevent made = calloc(1, sizeof(*made));
	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->magic = EVENT_MAGIC;
	made->context = context;
	made->incarnation = context->incarnation;
	made->flags = flags;
	*event = made;
	return CUDA_SUCCESS;
}

/* Works when the context is gone, too. */
CUresult cuEventDestroy_v2(CUevent event)
{
	CUresult result = event_check(event);

	if (result != CUDA_SUCCESS && result != CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return result;
	cuda_lock();
	work_forget_event_locked(event);
	nodes_clear(&event->front);
	event->magic = 0;
	cuda_unlock();
	free(event);
	return CUDA_SUCCESS;
}

CUresult event_push_locked(CUstream stream, CUevent event)
{
	struct piece piece = { COMPUTE_BUSY, .event = event };

	work_forget_event_locked(event);
	event->work = 0;
	event->settled = false;
	event->capture = 0;
	event->device = stream->context->device;
	return work_push_locked(stream, &piece);
}

static CUresult record_locked(CUevent event, CUstream stream, unsigned flags)
{
	struct capture *capture;
	CUresult result;

	if (stream->context != event->context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = capture_enter_locked(stream, &capture);
	if (result != CUDA_SUCCESS)
		return result;
	if (capture != NULL)
		return capture_record_locked(stream, event, flags != 0);
	if (flags != 0) /* only a capture can make a node of it */
		return CUDA_ERROR_INVALID_VALUE;
	return event_push_locked(stream, event);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
	CUresult result = event_check(event);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags > CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL)
		result = record_locked(event, stream, flags);
	cuda_unlock();
	return result;
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream,
				     unsigned flags)
{
	return cuEventRecordWithFlags(event, per_thread(stream), flags);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return cuEventRecordWithFlags(event, stream, 0);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return cuEventRecordWithFlags(event, per_thread(stream), 0);
}

CUresult cuEventQuery(CUevent event)
{
	CUresult result = event_check(event);

	if (result == CUDA_SUCCESS)
		result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	result = capture_query_locked(event);
	if (result == CUDA_SUCCESS && !work_settled_locked(event))
		result = CUDA_ERROR_NOT_READY;
	cuda_unlock();
	return result;
}

CUresult cuEventSynchronize(CUevent event)
{
	CUresult result = cuEventQuery(event);

	if (result == CUDA_ERROR_NOT_READY) {
		work_wait(event->device, event->work);
		result = CUDA_SUCCESS;
	}
	return result;
}

static CUresult elapsed_locked(float *milliseconds, CUevent start, CUevent end)
{
	if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 ||
	    start->work == 0 || end->work == 0 || start->capture != 0 ||
	    end->capture != 0 || start->device != end->device)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!work_settled_locked(start) || !work_settled_locked(end))
		return CUDA_ERROR_NOT_READY;
	int64_t time = (int64_t)(end->time - start->time);
	int64_t half = time < 0 ? -RESOLUTION / 2 : RESOLUTION / 2;
	*milliseconds = (float)((double)((time + half) / RESOLUTION) *
				RESOLUTION / 1e6);
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	CUresult result = event_check(start);

	if (result == CUDA_SUCCESS)
		result = event_check(end);
	if (result != CUDA_SUCCESS)
		return result;
	if (milliseconds == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = elapsed_locked(milliseconds, start, end);
	cuda_unlock();
	return result;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	return cuEventElapsedTime_v2(milliseconds, start, end);
}

static void raise(uint64_t *so_far, uint64_t work)
{
	if (*so_far < work)
		*so_far = work;
}

/* On its own device a stream comes after all that was submitted before. On
 * another, its whole lane waits. */
static CUresult wait_locked(CUstream stream, CUevent event)
{
	struct piece piece = {
		COMPUTE_WAIT,
		.other = (uint32_t)event->device,
		.after = event->work,
	};

	if (event->work == 0 || event->settled)
		return CUDA_SUCCESS;
	if (event->device != stream->context->device)
		return work_push_locked(stream, &piece);
	raise(&stream->last_work, event->work);
	raise(&stream->context->last_work, event->work);
	if (stream->legacy || stream->blocking)
		raise(&stream->context->last_blocking, event->work);
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
	CUresult result = event_check(event);
	bool taken = false;

	if (result != CUDA_SUCCESS)
		return result;
	if (flags > CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL)
		result = capture_wait_locked(stream, event, flags != 0, &taken);
	if (stream != NULL && result == CUDA_SUCCESS && !taken)
		result = wait_locked(stream, event);
	cuda_unlock();
	return result;
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
	return cuStreamWaitEvent(per_thread(stream), event, flags);
}
