/* Memory of a device as the ledger has it. */
#include "nvml_state.h"

/* The plugin's root may be mounted before the first process used a card, when
 * the ledger is still empty; opening again is cheap once it worked. */
static uint64_t used_bytes(nvmlDevice_t device)
{
	return ledger_open(nvml.root) ? ledger_used(device->ledger_index) : 0;
}

/* Version 1 knows no reserved memory and counts it as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	ENTER_DEVICE(device, memory);
	memory->total = device->gpu->memory_total;
	memory->used = device->gpu->memory_reserved + used_bytes(device);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device,
					nvmlMemory_v2_t *memory)
{
	ENTER_DEVICE(device, memory);
	if (memory->version != NVML_VERSIONED(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = device->gpu->memory_total;
	memory->reserved = device->gpu->memory_reserved;
	memory->used = used_bytes(device);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}
