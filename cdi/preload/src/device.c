/*
 * Which limited GPU a CUDA device is: by UUID, never by index, since every
 * container and CUDA_VISIBLE_DEVICES number devices as they like.
 */
#include "share.h"

/* What is known of a device number, for the hot path: nothing yet, that it has
 * no limit, or its GPU. Devices do not change while a process lives. */
#define DEVICES_KNOWN 64
static struct aq_gpu *known[DEVICES_KNOWN];
static struct aq_gpu unlimited;

static CUresult uuid_of(CUdevice device, CUuuid *uuid)
{
	if (aq_real.cuDeviceGetUuid_v2)
		return aq_real.cuDeviceGetUuid_v2(uuid, device);
	if (aq_real.cuDeviceGetUuid)
		return aq_real.cuDeviceGetUuid(uuid, device);
	return CUDA_ERROR_NOT_FOUND;
}

static CUresult look_up(CUdevice device, struct aq_gpu **gpu)
{
	CUuuid uuid;
	CUresult result = uuid_of(device, &uuid);

	if (result != CUDA_SUCCESS)
		return result;
	*gpu = aq_gpu_by_uuid((const uint8_t *)uuid.bytes);
	if (device >= 0 && device < DEVICES_KNOWN)
		__atomic_store_n(&known[device], *gpu ? *gpu : &unlimited,
				 __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

AQ_HOT CUresult aq_gpu_of_device(CUdevice device, struct aq_gpu **gpu)
{
	struct aq_gpu *g = NULL;

	if (AQ_LIKELY(device >= 0 && device < DEVICES_KNOWN))
		g = __atomic_load_n(&known[device], __ATOMIC_ACQUIRE);
	if (AQ_UNLIKELY(!g))
		return look_up(device, gpu);
	*gpu = g == &unlimited ? NULL : g;
	return CUDA_SUCCESS;
}

AQ_HOT CUresult aq_gpu_current(struct aq_gpu **gpu)
{
	CUdevice device;
	CUresult result;

	if (AQ_UNLIKELY(!aq_real.cuCtxGetDevice))
		return CUDA_ERROR_NOT_FOUND;
	result = aq_real.cuCtxGetDevice(&device);
	if (result != CUDA_SUCCESS)
		return result;
	return aq_gpu_of_device(device, gpu);
}
