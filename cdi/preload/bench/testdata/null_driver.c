/*
 * A driver that does next to nothing, so that what is added to a call can be
 * told from the call. One device, no threads; memory is numbers.
 */
#include <string.h>

#include "../../src/functions.h"

#define FIRST 0x7f0000000000ull
#define STEP 4096ull
#define ROOM (1 << 20)

static CUdeviceptr freed[ROOM];
static unsigned freed_count;
static CUdeviceptr next = FIRST;

CUresult AQ_EXPORT cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult AQ_EXPORT cuCtxSetCurrent(CUcontext context);
CUresult AQ_EXPORT cuCtxGetDevice(CUdevice *device);
CUresult AQ_EXPORT cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);

CUresult cuInit(unsigned flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	(void)device;
	*context = (CUcontext)1;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

/* GPU-00000001-aaaa-bbbb-cccc-0123456789ab */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	(void)device;
	memcpy(uuid->bytes,
	       "\x00\x00\x00\x01\xaa\xaa\xbb\xbb\xcc\xcc\x01\x23\x45\x67\x89\xab",
	       16);
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	if (freed_count > 0) {
		*pointer = freed[--freed_count];
	} else {
		*pointer = next;
		next += (bytes + STEP - 1) / STEP * STEP;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	freed[freed_count++ % ROOM] = pointer;
	return CUDA_SUCCESS;
}

CUresult AQ_EXPORT cuEventCreate(CUevent *event, unsigned flags);
CUresult AQ_EXPORT cuEventDestroy_v2(CUevent event);
CUresult AQ_EXPORT cuEventRecord(CUevent event, CUstream stream);
CUresult AQ_EXPORT cuEventQuery(CUevent event);
CUresult AQ_EXPORT cuEventElapsedTime(float *ms, CUevent start, CUevent end);
CUresult AQ_EXPORT cuCtxGetCurrent(CUcontext *context);

CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = (CUcontext)1;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy,
			unsigned gz, unsigned bx, unsigned by, unsigned bz,
			unsigned shared, CUstream stream, void **parameters,
			void **extra)
{
	(void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by;
	(void)bz, (void)shared, (void)stream, (void)parameters, (void)extra;
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	*event = (CUevent)1;
	(void)flags;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	(void)event, (void)stream;
	return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

/* Kernels take no time here. */
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	(void)start, (void)end;
	*ms = 0;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	*available = *total = (size_t)16 << 30;
	return CUDA_SUCCESS;
}
