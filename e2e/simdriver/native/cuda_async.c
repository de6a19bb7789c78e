/* Allocation in stream order, from memory pools. */
#include "cuda_state.h"

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	CUresult result;
	CUcontext context = stream_context(stream, &result);

	if (context == NULL)
		return result;
	if (pointer == NULL || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = pool_alloc_locked(pool_current_locked(context->device), pointer,
			      bytes);
	cuda_unlock();
	return result;
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes,
			      CUstream stream)
{
	return cuMemAllocAsync(pointer, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes,
				 CUmemoryPool pool, CUstream stream)
{
	CUresult result;

	if (stream_context(stream, &result) == NULL)
		return result;
	if (pointer == NULL || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = pool_valid_locked(pool) ?
			 pool_alloc_locked(pool, pointer, bytes) :
			 CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes,
				      CUmemoryPool pool, CUstream stream)
{
	return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

/* Memory of cuMemAlloc may be freed in stream order too. */
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	CUresult result;

	if (stream_context(stream, &result) == NULL)
		return result;
	cuda_lock();
	result = memory_free_locked(pointer);
	cuda_unlock();
	return result;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	return cuMemFreeAsync(pointer, stream);
}
