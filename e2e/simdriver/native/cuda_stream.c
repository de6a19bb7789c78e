/* Streams: what a handle means, and waiting for what was submitted to one. */
#include "cuda_work.h"

#include <stdlib.h>

/* The calling thread's own stream of each context that it used one of. They
 * stay when the thread ends, as a few bytes. */
static _Thread_local CUstream own_streams
	__attribute__((tls_model("initial-exec")));

static CUstream new_stream(CUcontext context, bool blocking)
{
	static uint32_t ids;
	CUstream made = calloc(1, sizeof(*made));

	if (made == NULL)
		return NULL;
	made->magic = STREAM_MAGIC;
	made->id = ++ids;
	made->context = context;
	made->incarnation = context->incarnation;
	made->blocking = blocking;
	return made;
}

static CUstream legacy_stream(CUcontext context)
{
	if (context->legacy == NULL)
		context->legacy = new_stream(context, false);
	if (context->legacy == NULL)
		return NULL;
	context->legacy->legacy = true;
	context->legacy->incarnation = context->incarnation;
	return context->legacy;
}

static CUstream own_stream(CUcontext context)
{
	CUstream stream = own_streams;

	while (stream != NULL && stream->context != context)
		stream = stream->next;
	if (stream == NULL) {
		stream = new_stream(context, true);
		if (stream == NULL)
			return NULL;
		stream->next = own_streams;
		own_streams = stream;
	}
	stream->incarnation = context->incarnation;
	return stream;
}

static bool is_alive(CUstream stream)
{
	return stream->magic == STREAM_MAGIC && stream->context->alive &&
	       stream->incarnation == stream->context->incarnation;
}

CUstream stream_find_locked(CUstream stream, CUresult *result)
{
	CUcontext current = context_current(result);

	if (current == NULL)
		return NULL;
	*result = CUDA_SUCCESS;
	if (stream == NULL || stream == CU_STREAM_LEGACY)
		stream = legacy_stream(current);
	else if (stream == CU_STREAM_PER_THREAD)
		stream = own_stream(current);
	else if (is_alive(stream))
		return stream;
	else
		*result = CUDA_ERROR_INVALID_HANDLE;
	if (*result != CUDA_SUCCESS)
		return NULL;
	if (stream == NULL)
		*result = CUDA_ERROR_OUT_OF_MEMORY;
	return stream;
}

CUcontext stream_context(CUstream stream, CUresult *result)
{
	cuda_lock();
	stream = stream_find_locked(stream, result);
	cuda_unlock();
	return stream == NULL ? NULL : stream->context;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (stream == NULL || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	CUstream made = new_stream(context, flags == 0);
	cuda_unlock();
	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*stream = made;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags,
				    int priority)
{
	(void)priority;
	return cuStreamCreate(stream, flags);
}

/* What was submitted goes on. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (stream == NULL || stream == CU_STREAM_LEGACY ||
	    stream == CU_STREAM_PER_THREAD || stream->magic != STREAM_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	cuda_lock();
	capture_leave_locked(stream);
	stream->magic = 0;
	cuda_unlock();
	free(stream);
	return CUDA_SUCCESS;
}

/* What must be done for a stream to be idle. Stream 0 waits for all others but
 * those that were made not to. */
static CUresult idle_at(CUstream handle, CUdevice *device, uint64_t *so_far)
{
	CUresult result = capture_unsafe();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL)
		result = capture_refuse_locked(stream);
	if (stream != NULL && result == CUDA_SUCCESS) {
		*device = stream->context->device;
		*so_far = stream->legacy ? stream->context->last_blocking :
					   stream->last_work;
	}
	cuda_unlock();
	return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUdevice device;
	uint64_t so_far;
	CUresult result = idle_at(stream, &device, &so_far);

	if (result != CUDA_SUCCESS)
		return result;
	work_wait(device, so_far);
	cuda_lock();
	pools_synchronise_locked(device);
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return cuStreamSynchronize(per_thread(stream));
}

CUresult cuStreamQuery(CUstream stream)
{
	CUdevice device;
	uint64_t so_far;
	CUresult result = idle_at(stream, &device, &so_far);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	bool done = work_done_locked(device, so_far);
	cuda_unlock();
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return cuStreamQuery(per_thread(stream));
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	CUresult result;
	CUcontext of = stream_context(stream, &result);

	if (of == NULL)
		return result;
	if (context == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*context = of;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context)
{
	return cuStreamGetCtx(per_thread(stream), context);
}
