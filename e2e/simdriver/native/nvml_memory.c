/* Memory of a device as the ledger has it. */
#include "nvml_state.h"

/* The plugin's root may be mounted before the first process used a card, when
 * the ledger is still empty; opening again is cheap once it worked. */
static uint64_t used_bytes(nvmlDevice_t device)
{
	return ledger_open(nvml.root) ?
		       ledger_used_in(device->ledger_index,
				      mig_device_instance(device)) :
		       0;
}

/* A MIG device has what its profile says, of which nothing is reserved. */
static nvmlMemory_v2_t memory_of(nvmlDevice_t device)
{
	nvmlMemory_v2_t memory = { .used = used_bytes(device) };

	if (device->compute != NULL) {
		memory.total = mig_device_memory(device);
	} else {
		memory.total = device->gpu->memory_total;
		memory.reserved = device->gpu->memory_reserved;
	}
	memory.free = memory.total - memory.reserved - memory.used;
	return memory;
}

/* Version 1 knows no reserved memory and counts it as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	ENTER_ANY(device, memory);
	nvmlMemory_v2_t all = memory_of(device);
	*memory = (nvmlMemory_t){ all.total, all.free,
				  all.reserved + all.used };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device,
					nvmlMemory_v2_t *memory)
{
	unsigned version;

	ENTER_ANY(device, memory);
	version = memory->version;
	if (version != NVML_VERSIONED(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	*memory = memory_of(device);
	memory->version = version;
	return NVML_SUCCESS;
}
