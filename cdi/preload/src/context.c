/*
 * The end of a context frees what was allocated in it, without a call that
 * names the pointers. Which of ours are gone is asked of the driver, so nothing
 * about contexts is remembered on the hot path.
 */
#include "functions.h"
#include "pointers.h"
#include "pool.h"

static bool is_alive(uint64_t pointer)
{
	int device;

	return !aq_real.cuPointerGetAttribute ||
	       aq_real.cuPointerGetAttribute(
		       &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		       pointer) == CUDA_SUCCESS;
}

static void sweep(struct aq_gpu *gpu)
{
	if (!gpu)
		return;
	aq_pointers_sweep(gpu, is_alive);
	aq_pools_refresh(gpu);
}

/* A primary context lives on while others hold it. */
static void sweep_primary(CUdevice device)
{
	struct aq_gpu *gpu = NULL;
	unsigned flags;
	int active = 0;

	if (aq_real.cuDevicePrimaryCtxGetState &&
	    aq_real.cuDevicePrimaryCtxGetState(device, &flags, &active) ==
		    CUDA_SUCCESS &&
	    active)
		return;
	if (aq_gpu_of_device(device, &gpu) == CUDA_SUCCESS)
		sweep(gpu);
}

/* The device of a context that need not be current; asked while it lives. */
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

#define CONTEXT_DESTROY(name)                               \
	CUresult name(CUcontext context)                    \
	{                                                   \
		struct aq_gpu *gpu;                         \
		CUresult result;                            \
							    \
		AQ_ENTER(name);                             \
		gpu = context ? gpu_of(context) : NULL;     \
		result = aq_real.name(context);             \
		if (result == CUDA_SUCCESS)                 \
			sweep(gpu);                         \
		return result;                              \
	}

#define PRIMARY_CONTEXT_END(name)                           \
	CUresult name(CUdevice device)                      \
	{                                                   \
		CUresult result;                            \
							    \
		AQ_ENTER(name);                             \
		result = aq_real.name(device);              \
		if (result == CUDA_SUCCESS)                 \
			sweep_primary(device);              \
		return result;                              \
	}

CONTEXT_DESTROY(cuCtxDestroy)
CONTEXT_DESTROY(cuCtxDestroy_v2)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxRelease)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxRelease_v2)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxReset)
PRIMARY_CONTEXT_END(cuDevicePrimaryCtxReset_v2)

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
