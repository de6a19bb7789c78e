/* Allocation in stream order, from memory pools or by a graph. */
#include "cuda_work.h"

/* The pool is NULL for the device's own. */
static CUresult alloc_locked(CUdeviceptr *pointer, uint64_t bytes,
			     CUmemoryPool pool, CUstream stream)
{
	struct capture *capture;
	CUresult result = capture_enter_locked(stream, &capture);

	if (result != CUDA_SUCCESS)
		return result;
	if (capture != NULL)
		return capture_alloc_locked(stream, pointer, bytes);
	if (pool == NULL)
		pool = pool_current_locked(stream->context->device);
	return pool_alloc_locked(pool, pointer, bytes);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream handle)
{
	CUresult result;

	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL && (pointer == NULL || bytes == 0))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (stream != NULL)
		result = alloc_locked(pointer, bytes, NULL, stream);
	cuda_unlock();
	return result;
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes,
			      CUstream stream)
{
	return cuMemAllocAsync(pointer, bytes, per_thread(stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes,
				 CUmemoryPool pool, CUstream handle)
{
	CUresult result;

	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL &&
	    (pointer == NULL || bytes == 0 || !pool_valid_locked(pool)))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (stream != NULL)
		result = alloc_locked(pointer, bytes, pool, stream);
	cuda_unlock();
	return result;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes,
				      CUmemoryPool pool, CUstream stream)
{
	return cuMemAllocFromPoolAsync(pointer, bytes, pool,
				       per_thread(stream));
}

static CUresult free_locked(CUdeviceptr pointer, CUstream stream)
{
	struct capture *capture;
	CUresult result = capture_enter_locked(stream, &capture);

	if (result != CUDA_SUCCESS)
		return result;
	return capture != NULL ? capture_free_locked(stream, pointer) :
				 memory_free_locked(pointer);
}

/* Memory of cuMemAlloc may be freed in stream order too. It is at once: here
 * nobody can touch it too late. */
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle)
{
	CUresult result;

	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL)
		result = free_locked(pointer, stream);
	cuda_unlock();
	return result;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	return cuMemFreeAsync(pointer, per_thread(stream));
}
