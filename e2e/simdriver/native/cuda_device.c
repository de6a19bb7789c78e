/* The devices that this process may see, and their facts. */
#include "cuda_state.h"

#include <stdio.h>
#include <string.h>

CUresult cuDeviceGetCount(int *count)
{
	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (count == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*count = cuda.device_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_is_device(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult check(const void *out, CUdevice device)
{
	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	return cuda_is_device(device) ? CUDA_SUCCESS :
					CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	CUresult result = check(name, device);

	if (result != CUDA_SUCCESS)
		return result;
	if (length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "%s", cuda.devices[device].name);
	return CUDA_SUCCESS;
}

/* Of the card, even where the device is a part of it. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CUresult result = check(uuid, device);

	if (result == CUDA_SUCCESS)
		uuid_of_text(cuda.devices[device].gpu->uuid,
			     (unsigned char *)uuid->bytes);
	return result;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	CUresult result = check(uuid, device);

	if (result == CUDA_SUCCESS)
		memcpy(uuid->bytes, cuda.devices[device].uuid,
		       sizeof(uuid->bytes));
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = check(bytes, device);

	if (result != CUDA_SUCCESS)
		return result;
	*bytes = cuda.devices[device].total;
	return CUDA_SUCCESS;
}

/* The ABI of CUDA 2, with 32-bit sizes. */
CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t wide = 0;
	CUresult result = check(bytes, device);

	if (result == CUDA_SUCCESS)
		result = cuDeviceTotalMem_v2(&wide, device);
	if (result == CUDA_SUCCESS)
		*bytes = wide > UINT32_MAX ? UINT32_MAX : (unsigned)wide;
	return result;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	static const struct {
		int attribute, value;
	} common[] = {
		{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
		{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024 },
		{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024 },
		{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64 },
		{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647 },
		{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535 },
		{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535 },
		{ CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
		{ CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
		{ CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1 },
		{ CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1 },
		{ CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
		{ CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1 },
	};
	CUresult result = check(value, device);

	if (result != CUDA_SUCCESS)
		return result;
	const struct sim_gpu *gpu = cuda.devices[device].gpu;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = (int)cuda.devices[device].multiprocessors;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = (int)gpu->pci_bus;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
		*value = (int)gpu->pci_device;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
		*value = (int)gpu->pci_domain;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = (int)gpu->cc_major;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = (int)gpu->cc_minor;
		return CUDA_SUCCESS;
	}
	*value = 0; /* what a card lacks, and what is not simulated */
	for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
		if (common[i].attribute == attribute)
			*value = common[i].value;
	return attribute > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* CUDA writes four digits of the domain where NVML writes eight. */
CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
	CUresult result = check(id, device);

	if (result != CUDA_SUCCESS)
		return result;
	const struct sim_gpu *gpu = cuda.devices[device].gpu;
	if (length < (int)sizeof("0000:00:00.0"))
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(id, (size_t)length, "%04X:%02X:%02X.0", gpu->pci_domain,
		 gpu->pci_bus, gpu->pci_device);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	unsigned domain, bus, slot;

	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (device == NULL || id == NULL ||
	    sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < cuda.device_count; i++) {
		const struct sim_gpu *gpu = cuda.devices[i].gpu;
		if (gpu->pci_domain == domain && gpu->pci_bus == bus &&
		    gpu->pci_device == slot) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}
