/*
 * Green contexts: parts of a device's multiprocessors. They cost nothing here
 * beyond the primary context, which lives while any of them does; which
 * multiprocessors they have does not matter.
 */
#include "cuda_state.h"

#include <stdlib.h>

struct CUgreenCtx_st {
	uint32_t magic;
	CUdevice device;
};

#define GREEN_MAGIC 0x4e524745u

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources,
			  CUdevice device, unsigned flags)
{
	CUresult result = cuda_ready();
	CUcontext primary;

	if (result != CUDA_SUCCESS)
		return result;
	if (green == NULL || resources == NULL || flags != 1)
		return CUDA_ERROR_INVALID_VALUE;
	CUgreenCtx made = malloc(sizeof(*made));
	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuDevicePrimaryCtxRetain(&primary, device);
	if (result != CUDA_SUCCESS) {
		free(made);
		return result;
	}
	*made = (struct CUgreenCtx_st){ GREEN_MAGIC, device };
	*green = made;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (green == NULL || green->magic != GREEN_MAGIC)
		return CUDA_ERROR_INVALID_CONTEXT;
	green->magic = 0;
	result = cuDevicePrimaryCtxRelease_v2(green->device);
	free(green);
	return result;
}
