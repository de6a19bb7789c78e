/* Each device's primary context, which the CUDA runtime uses: counted, and
 * begun again when someone retains it after the last release. */
#include "cuda_state.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (context == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	CUcontext *primary = &cuda.devices[device].primary;
	if (*primary == NULL)
		result = context_create_locked(primary, device, 0, true);
	else if (!(*primary)->alive)
		result = context_activate_locked(*primary);
	if (result == CUDA_SUCCESS) {
		(*primary)->references++;
		*context = *primary;
	}
	cuda_unlock();
	return result;
}

/* Drops one reference of the primary context, or all of them. */
static CUresult primary_drop(CUdevice device, bool all)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	work_drain(cuda.devices[device].primary);
	cuda_lock();
	CUcontext primary = cuda.devices[device].primary;
	if (primary == NULL || !primary->alive)
		result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	else if (all || --primary->references == 0)
		context_deactivate_locked(primary);
	if (all && primary != NULL)
		primary->references = 0;
	cuda_unlock();
	return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return primary_drop(device, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return primary_drop(device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return primary_drop(device, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return primary_drop(device, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
				    int *active)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags == NULL || active == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	CUcontext primary = cuda.devices[device].primary;
	*flags = primary == NULL ? 0 : primary->flags;
	*active = primary != NULL && primary->alive;
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	if (cuda.devices[device].primary != NULL)
		cuda.devices[device].primary->flags = flags;
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}
