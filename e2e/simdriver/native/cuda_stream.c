/* Streams, and launches that do nothing yet: work takes no time here. */
#include "cuda_state.h"

#include <stdlib.h>

#define STREAM_MAGIC 0x53545245u

struct CUstream_st {
	uint32_t magic;
	CUcontext context;
};

CUcontext stream_context(CUstream stream, CUresult *result)
{
	CUcontext current = context_current(result);

	if (current == NULL)
		return NULL;
	if (stream == NULL || stream == CU_STREAM_LEGACY ||
	    stream == CU_STREAM_PER_THREAD)
		return current;
	if (stream->magic == STREAM_MAGIC && stream->context->alive)
		return stream->context;
	*result = CUDA_ERROR_INVALID_HANDLE;
	return NULL;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (stream == NULL || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	CUstream made = malloc(sizeof(*made));
	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct CUstream_st){ STREAM_MAGIC, context };
	*stream = made;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags,
				    int priority)
{
	(void)priority;
	return cuStreamCreate(stream, flags);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (stream == NULL || stream == CU_STREAM_LEGACY ||
	    stream == CU_STREAM_PER_THREAD || stream->magic != STREAM_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	stream->magic = 0;
	free(stream);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult result;
	CUcontext context = stream_context(stream, &result);

	if (context == NULL)
		return result;
	cuda_lock();
	pools_synchronise_locked(context->device);
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return cuStreamSynchronize(stream);
}

CUresult cuStreamQuery(CUstream stream)
{
	CUresult result;

	return stream_context(stream, &result) == NULL ? result : CUDA_SUCCESS;
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return cuStreamQuery(stream);
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
	return cuStreamGetCtx(stream, context);
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	CUresult result;

	if (stream_context(stream, &result) == NULL)
		return result;
	if (status == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*status = 0;
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	return cuStreamIsCapturing(stream, status);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
			unsigned grid_z, unsigned block_x, unsigned block_y,
			unsigned block_z, unsigned shared_bytes,
			CUstream stream, void **parameters, void **extra)
{
	CUresult result;

	(void)function, (void)shared_bytes, (void)parameters, (void)extra;
	if (stream_context(stream, &result) == NULL)
		return result;
	if (grid_x == 0 || grid_y == 0 || grid_z == 0 || block_x == 0 ||
	    block_y == 0 || block_z == 0)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x,
			     unsigned grid_y, unsigned grid_z, unsigned block_x,
			     unsigned block_y, unsigned block_z,
			     unsigned shared_bytes, CUstream stream,
			     void **parameters, void **extra)
{
	return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x,
			      block_y, block_z, shared_bytes, stream,
			      parameters, extra);
}
