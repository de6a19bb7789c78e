/*
 * What a program sees of a limited GPU: the share's size and what is left of
 * it, by CUDA and by NVML alike. A GPU that is closed has nothing free.
 */
#include "charge.h"
#include "contexts.h"
#include "functions.h"
#include "pool.h"
#include "view.h"

struct view {
	uint64_t total, used, free;
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* total and free: the driver's figures. */
static struct view look(struct aq_gpu *gpu, uint64_t total, uint64_t free)
{
	struct view view = { .total = total, .used = total };

	if (gpu->closed)
		return view;
	aq_contexts_look(gpu);
	if (aq_cuda())
		aq_pools_refresh(gpu);
	view.total = least(total, gpu->memory_bytes);
	view.used = least(view.total, aq_used(gpu) << AQ_UNIT_SHIFT);
	view.free = least(free, view.total - view.used);
	return view;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	size_t real_free, real_total;
	struct aq_gpu *gpu;
	struct view view;
	CUresult result;

	AQ_ENTER(cuMemGetInfo_v2);
	result = aq_real.cuMemGetInfo_v2(&real_free, &real_total);
	if (result == CUDA_SUCCESS)
		result = aq_gpu_current(&gpu);
	if (result != CUDA_SUCCESS)
		return result;
	view = gpu ? look(gpu, real_total, real_free)
		   : (struct view){ .total = real_total, .free = real_free };
	if (free)
		*free = view.free;
	if (total)
		*total = view.total;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned *free, unsigned *total)
{
	unsigned real_free, real_total;
	struct aq_gpu *gpu;
	struct view view;
	CUresult result;

	AQ_ENTER(cuMemGetInfo);
	result = aq_real.cuMemGetInfo(&real_free, &real_total);
	if (result == CUDA_SUCCESS)
		result = aq_gpu_current(&gpu);
	if (result != CUDA_SUCCESS)
		return result;
	view = gpu ? look(gpu, real_total, real_free)
		   : (struct view){ .total = real_total, .free = real_free };
	if (free)
		*free = (unsigned)view.free;
	if (total)
		*total = (unsigned)view.total;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	struct aq_gpu *gpu;
	CUresult result;

	AQ_ENTER(cuDeviceTotalMem_v2);
	result = aq_real.cuDeviceTotalMem_v2(bytes, device);
	if (result == CUDA_SUCCESS)
		result = aq_gpu_of_device(device, &gpu);
	if (result == CUDA_SUCCESS && gpu && !gpu->closed)
		*bytes = least(*bytes, gpu->memory_bytes);
	return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	struct aq_gpu *gpu;
	CUresult result;

	AQ_ENTER(cuDeviceTotalMem);
	result = aq_real.cuDeviceTotalMem(bytes, device);
	if (result == CUDA_SUCCESS)
		result = aq_gpu_of_device(device, &gpu);
	if (result == CUDA_SUCCESS && gpu && !gpu->closed)
		*bytes = (unsigned)least(*bytes, gpu->memory_bytes);
	return result;
}

bool aq_gpu_of_nvml(nvmlDevice_t device, struct aq_gpu **gpu)
{
	char text[NVML_DEVICE_UUID_BUFFER_SIZE] = "";
	uint8_t uuid[16];
	unsigned size = 0;

	if (!aq_real.nvmlDeviceGetUUID ||
	    aq_real.nvmlDeviceGetUUID(device, text, sizeof(text)) !=
		    NVML_SUCCESS)
		return false;
	while (size < sizeof(text) && text[size])
		size++;
	if (!aq_uuid_parse(uuid, text, size))
		return false;
	*gpu = aq_gpu_by_uuid(uuid);
	return true;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct aq_gpu *gpu;
	nvmlReturn_t result;

	if (!aq_nvml() || !aq_real.nvmlDeviceGetMemoryInfo)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	result = aq_real.nvmlDeviceGetMemoryInfo(device, memory);
	if (result == NVML_SUCCESS && aq_gpu_of_nvml(device, &gpu) && gpu) {
		struct view view = look(gpu, memory->total, memory->free);

		memory->total = view.total;
		memory->used = view.used;
		memory->free = view.free;
	}
	return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device,
					nvmlMemory_v2_t *memory)
{
	struct aq_gpu *gpu;
	nvmlReturn_t result;

	if (!aq_nvml() || !aq_real.nvmlDeviceGetMemoryInfo_v2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	result = aq_real.nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (result == NVML_SUCCESS && aq_gpu_of_nvml(device, &gpu) && gpu) {
		struct view view = look(gpu, memory->total, memory->free);

		memory->total = view.total;
		memory->used = view.used;
		memory->free = view.free;
	}
	return result;
}
