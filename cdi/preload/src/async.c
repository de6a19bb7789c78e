/*
 * Stream-ordered allocation: which pool a call takes from, and charging it.
 * What a pool is charged is pool.c's business.
 */
#include "functions.h"
#include "pool.h"

/* The functions of one kind of stream semantics. */
struct flavour {
	CUresult (*allocate)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	CUresult (*free)(CUdeviceptr, CUstream);
	CUresult (*is_capturing)(CUstream, int *);
	CUresult (*context_of)(CUstream, CUcontext *);
};

#define FLAVOUR(suffix)                                         \
	((struct flavour){                                      \
		aq_real.cuMemAllocFromPoolAsync##suffix,        \
		aq_real.cuMemFreeAsync##suffix,                 \
		aq_real.cuStreamIsCapturing##suffix,            \
		aq_real.cuStreamGetCtx##suffix,                 \
	})

/* The pool took more than there is; give it back. */
static CUresult undo(struct aq_pool *pool, CUmemoryPool handle,
		     CUdeviceptr pointer, CUstream stream,
		     CUresult (*release)(CUdeviceptr, CUstream))
{
	release(pointer, stream);
	if (aq_real.cuMemPoolTrimTo)
		aq_real.cuMemPoolTrimTo(handle, 0);
	aq_pools_refresh(aq_pool_gpu(pool));
	aq_pool_end(pool);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* One call on a pool of a limited GPU, not in a capture. */
static CUresult charge_call(const struct flavour *real, CUdeviceptr *pointer,
			    size_t bytes, CUmemoryPool handle, CUstream stream,
			    struct aq_gpu *gpu)
{
	struct aq_pool *pool = aq_pool_begin(handle, gpu);
	struct aq_hold hold;
	CUresult result;
	bool covered;

	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!aq_pool_gpu(pool)) {
		aq_pool_end(pool);
		return real->allocate(pointer, bytes, handle, stream);
	}
	if (!aq_pool_reserve(pool, &hold, aq_units(bytes))) {
		aq_pool_end(pool);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = real->allocate(pointer, bytes, handle, stream);
	covered = aq_pool_settle(pool, &hold, result == CUDA_SUCCESS);
	if (result != CUDA_SUCCESS) {
		aq_pool_end(pool);
		return result;
	}
	if (!covered || !aq_pool_record(pool, *pointer))
		return undo(pool, handle, *pointer, stream, real->free);
	return CUDA_SUCCESS;
}

bool aq_is_capturing(CUstream stream, CUresult (*query)(CUstream, int *))
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	return query && query(stream, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The device of a stream, which need not be the current context's. */
static CUresult device_of(const struct flavour *real, CUstream stream,
			  CUdevice *device)
{
	CUcontext context, current = NULL;
	CUresult result;

	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD ||
	    !real->context_of)
		return aq_real.cuCtxGetDevice(device);
	result = real->context_of(stream, &context);
	if (result != CUDA_SUCCESS)
		return result;
	if (aq_real.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
	    current == context)
		return aq_real.cuCtxGetDevice(device);
	result = aq_real.cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = aq_real.cuCtxGetDevice(device);
	aq_real.cuCtxPopCurrent_v2(&context);
	return result;
}

/*
 * Allocating from a device is allocating from its current pool; the pool is
 * named, so that another thread that changes it cannot have one charged for
 * what the other gives. forward: the host's own call, for what has no limit.
 */
#define ALLOC_ASYNC(name, suffix)                                             \
	CUresult name##suffix(CUdeviceptr *pointer, size_t bytes,             \
			      CUstream stream)                                \
	{                                                                     \
		CUmemoryPool pool = NULL;                                     \
		struct aq_gpu *gpu = NULL;                                    \
		struct flavour real;                                          \
		CUresult result;                                              \
									      \
		AQ_ENTER(name##suffix);                                       \
		real = FLAVOUR(suffix);                                       \
		if (aq_is_capturing(stream, real.is_capturing))               \
			return aq_real.name##suffix(pointer, bytes, stream);  \
		result = find_pool(&real, stream, &pool, &gpu);               \
		if (result != CUDA_SUCCESS)                                   \
			return result;                                        \
		if (!gpu)                                                     \
			return aq_real.name##suffix(pointer, bytes, stream);  \
		return charge_call(&real, pointer, bytes, pool, stream, gpu); \
	}

static CUresult find_pool(const struct flavour *real, CUstream stream,
			  CUmemoryPool *pool, struct aq_gpu **gpu)
{
	CUdevice device;
	CUresult result = device_of(real, stream, &device);

	if (result == CUDA_SUCCESS)
		result = aq_gpu_of_device(device, gpu);
	if (result == CUDA_SUCCESS && *gpu)
		result = aq_real.cuDeviceGetMemPool(pool, device);
	return result;
}

ALLOC_ASYNC(cuMemAllocAsync, )
ALLOC_ASYNC(cuMemAllocAsync, _ptsz)

/* The pool's GPU is what counts, and it was noted when the pool was made; only
 * a pool we never saw is taken to be of the stream's device. */
#define ALLOC_FROM_POOL_ASYNC(name, suffix)                                   \
	CUresult name##suffix(CUdeviceptr *pointer, size_t bytes,             \
			      CUmemoryPool pool, CUstream stream)             \
	{                                                                     \
		struct aq_gpu *gpu = NULL;                                    \
		struct flavour real;                                          \
		CUdevice device;                                              \
		CUresult result;                                              \
									      \
		AQ_ENTER(name##suffix);                                       \
		real = FLAVOUR(suffix);                                       \
		if (aq_is_capturing(stream, real.is_capturing))               \
			return real.allocate(pointer, bytes, pool, stream);   \
		result = device_of(&real, stream, &device);                   \
		if (result == CUDA_SUCCESS)                                   \
			result = aq_gpu_of_device(device, &gpu);              \
		if (result != CUDA_SUCCESS)                                   \
			return result;                                        \
		return charge_call(&real, pointer, bytes, pool, stream, gpu); \
	}

ALLOC_FROM_POOL_ASYNC(cuMemAllocFromPoolAsync, )
ALLOC_FROM_POOL_ASYNC(cuMemAllocFromPoolAsync, _ptsz)
