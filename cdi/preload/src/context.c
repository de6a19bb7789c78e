/*
 * Contexts cost memory by themselves (contexts.c), and the end of one frees what
 * was allocated in it, without a call that names the pointers. Which of ours are
 * gone is asked of the driver, so nothing about contexts is remembered on the hot
 * path.
 */
#include "arrays.h"
#include "contexts.h"
#include "pointers.h"
#include "pool.h"
#include "sample.h"

static bool is_alive(uint64_t pointer)
{
	int device;

	return !aq_real.cuPointerGetAttribute ||
	       aq_real.cuPointerGetAttribute(
		       &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		       pointer) == CUDA_SUCCESS;
}

static void sweep(struct aq_gpu *gpu, CUcontext context)
{
	aq_arrays_sweep(context);
	aq_pointers_sweep(gpu, is_alive);
	aq_pools_refresh(gpu);
}

/* The device of a context that we did not see made; asked while it lives. */
static struct aq_gpu *gpu_of(CUcontext context)
{
	struct aq_gpu *gpu = NULL;

	if (!aq_real.cuCtxPushCurrent_v2 || !aq_real.cuCtxPopCurrent_v2 ||
	    aq_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return NULL;
	if (aq_gpu_current(&gpu) != CUDA_SUCCESS)
		gpu = NULL;
	aq_real.cuCtxPopCurrent_v2(&context);
	return gpu;
}

/* The parameters of all of these end in the device, or have it so named. */
#define CONTEXT_BEGIN(name, kind, parameters, arguments)           \
	CUresult name parameters                                   \
	{                                                          \
		struct aq_gpu *gpu;                                \
		CUresult result;                                   \
								   \
		AQ_ENTER(name);                                    \
		result = aq_gpu_of_device(device, &gpu);           \
		if (result != CUDA_SUCCESS)                        \
			return result;                             \
		if (!gpu)                                          \
			return aq_real.name arguments;             \
		if (!aq_context_begin(gpu))                        \
			return CUDA_ERROR_OUT_OF_MEMORY;           \
		result = aq_real.name arguments;                   \
		aq_context_made(gpu, device,                       \
				result ? NULL : *context, kind);   \
		return result;                                     \
	}

CONTEXT_BEGIN(cuCtxCreate, AQ_CREATED,
	      (CUcontext *context, unsigned flags, CUdevice device),
	      (context, flags, device))
CONTEXT_BEGIN(cuCtxCreate_v2, AQ_CREATED,
	      (CUcontext *context, unsigned flags, CUdevice device),
	      (context, flags, device))
CONTEXT_BEGIN(cuCtxCreate_v3, AQ_CREATED,
	      (CUcontext *context, CUexecAffinityParam *affinities, int count,
	       unsigned flags, CUdevice device),
	      (context, affinities, count, flags, device))
CONTEXT_BEGIN(cuCtxCreate_v4, AQ_CREATED,
	      (CUcontext *context, CUctxCreateParams *parameters,
	       unsigned flags, CUdevice device),
	      (context, parameters, flags, device))
CONTEXT_BEGIN(cuDevicePrimaryCtxRetain, AQ_PRIMARY,
	      (CUcontext *context, CUdevice device), (context, device))
CONTEXT_BEGIN(cuGreenCtxCreate, AQ_GREEN,
	      (CUgreenCtx *context, CUdevResourceDesc resources,
	       CUdevice device, unsigned flags),
	      (context, resources, device, flags))

#define CONTEXT_END(name, type, kind, otherwise)                    \
	CUresult name(type context)                                 \
	{                                                           \
		struct aq_context ours = { .gpu = NULL };           \
		CUcontext primary = NULL;                           \
		bool known;                                         \
		CUresult result;                                    \
								    \
		AQ_ENTER(name);                                     \
		known = aq_context_take(context, kind, &ours);      \
		if (!known && context)                              \
			ours.gpu = otherwise;                       \
		result = aq_real.name(context);                     \
		if (result != CUDA_SUCCESS) {                       \
			if (known)                                  \
				aq_context_put_back(&ours);         \
			return result;                              \
		}                                                   \
		aq_samples_drop((CUcontext)context);                \
		if (known)                                          \
			primary = aq_context_retire(&ours);         \
		if (primary)                                        \
			aq_arrays_sweep(primary);                   \
		if (ours.gpu)                                       \
			sweep(ours.gpu, (CUcontext)context);        \
		return result;                                      \
	}

#define PRIMARY_CONTEXT_END(name)                                        \
	CUresult name(CUdevice device)                                   \
	{                                                                \
		struct aq_gpu *gpu = NULL;                               \
		CUcontext context;                                       \
		CUresult result;                                         \
									 \
		AQ_ENTER(name);                                          \
		result = aq_real.name(device);                           \
		if (result == CUDA_SUCCESS &&                            \
		    aq_gpu_of_device(device, &gpu) == CUDA_SUCCESS &&    \
		    gpu && aq_primary_ended(gpu, device, &context)) {    \
			aq_samples_drop_gpu(gpu);                        \
			sweep(gpu, context);                             \
		}                                                        \
		return result;                                           \
	}

CONTEXT_END(cuCtxDestroy, CUcontext, AQ_CREATED, gpu_of(context))
CONTEXT_END(cuCtxDestroy_v2, CUcontext, AQ_CREATED, gpu_of(context))
CONTEXT_END(cuGreenCtxDestroy, CUgreenCtx, AQ_GREEN, NULL)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxRelease)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxRelease_v2)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxReset)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxReset_v2)

static uint32_t limit_units(int limit)
{
	size_t bytes = 0;

	if (aq_real.cuCtxGetLimit &&
	    aq_real.cuCtxGetLimit(&bytes, limit) != CUDA_SUCCESS)
		return 0;
	return aq_units(bytes);
}

/* The device heap and the buffer of printf are memory of the device; what they
 * are at first is part of what a context costs. Stacks are too, but how much is
 * the driver's choice of moment and size: the agent measures it. */
CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUcontext context = NULL;
	uint32_t had, more, now;
	CUresult result;

	AQ_ENTER(cuCtxSetLimit);
	if ((limit != CU_LIMIT_MALLOC_HEAP_SIZE &&
	     limit != CU_LIMIT_PRINTF_FIFO_SIZE) ||
	    aq_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return aq_real.cuCtxSetLimit(limit, value);
	had = limit_units(limit);
	more = aq_units(value) > had ? aq_units(value) - had : 0;
	if (!aq_context_grow(context, more))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = aq_real.cuCtxSetLimit(limit, value);
	now = limit_units(limit);
	if (now < had + more)
		aq_context_shrink(context, had + more - now);
	return result;
}

/* The first call of most programs, and the moment when all their descriptors of
 * the driver are open: ours, opened now, are closed after them at the end. */
CUresult cuInit(unsigned flags)
{
	CUresult result;

	AQ_ENTER(cuInit);
	result = aq_real.cuInit(flags);
	if (result == CUDA_SUCCESS)
		aq_shares_load();
	return result;
}
