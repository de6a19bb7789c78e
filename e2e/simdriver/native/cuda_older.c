/*
 * The first versions of functions that were given a second one for what does not
 * matter here. Those that have 32-bit addresses or sizes are left out: no address
 * of this driver would fit.
 */
#include "cuda_api.h"

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy(CUcontext context)
{
	return cuCtxDestroy_v2(context);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	return cuCtxPushCurrent_v2(context);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	return cuCtxPopCurrent_v2(context);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle,
			    unsigned flags)
{
	return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}
