/* MIG: a card may be able to, but none is ever divided yet. */
#include "nvml_state.h"

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current,
				  unsigned *pending)
{
	ENTER_DEVICE(device, current);
	if (pending == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (device->gpu->mig_max == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device,
					    unsigned *count)
{
	ENTER_DEVICE(device, count);
	*count = device->gpu->mig_max;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
	ENTER_DEVICE(device, is_mig);
	*is_mig = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device,
						 unsigned index,
						 nvmlDevice_t *mig)
{
	(void)index;
	ENTER_DEVICE(device, mig);
	return device->gpu->mig_max == 0 ? NVML_ERROR_NOT_SUPPORTED :
					   NVML_ERROR_NOT_FOUND;
}
