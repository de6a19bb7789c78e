/* Event sets: what a test writes into the fault file. */
#include "nvml_state.h"

#include <stdlib.h>
#include <time.h>

struct nvmlEventSet_st {
	unsigned seen; /* event lines of the file already past */
	uint64_t types[SIM_MAX_GPUS]; /* registered, by place in description */
};

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
					      unsigned long long *types)
{
	ENTER_DEVICE(device, types);
	*types = NVML_EVENTS;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	struct fault_event event;

	ENTER();
	if (set == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	if (*set == NULL)
		return NVML_ERROR_MEMORY;
	while (fault_event(nvml.root, (*set)->seen, &event))
		(*set)->seen++; /* what happened before is not reported */
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	ENTER();
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device,
				      unsigned long long types,
				      nvmlEventSet_t set)
{
	ENTER_DEVICE(device, set);
	if ((types & ~NVML_EVENTS) != 0)
		return NVML_ERROR_NOT_SUPPORTED;
	set->types[device->ledger_index] |= types;
	return NVML_SUCCESS;
}

static nvmlDevice_t device_of(unsigned gpu)
{
	for (unsigned i = 0; i < nvml.device_count; i++)
		if (nvml.devices[i].ledger_index == gpu)
			return &nvml.devices[i];
	return NULL;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
	struct fault_event event;

	while (fault_event(nvml.root, set->seen, &event)) {
		set->seen++;
		if (event.gpu >= SIM_MAX_GPUS || device_of(event.gpu) == NULL ||
		    (set->types[event.gpu] & event.type) == 0)
			continue;
		*data = (nvmlEventData_t){
			.device = device_of(event.gpu),
			.eventType = event.type,
			.eventData = event.data,
			.gpuInstanceId = NVML_NO_INSTANCE,
			.computeInstanceId = NVML_NO_INSTANCE,
		};
		return true;
	}
	return false;
}

static bool registered_gpu_lost(nvmlEventSet_t set)
{
	for (unsigned gpu = 0; gpu < nvml.hardware.gpu_count; gpu++)
		if (set->types[gpu] != 0 && fault_gpu_lost(nvml.root, gpu))
			return true;
	return false;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* timeout is in milliseconds. */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
				 unsigned timeout)
{
	int64_t end = now_ms() + timeout;

	if (set == NULL || data == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (;;) {
		ENTER();
		if (next_event(set, data))
			return NVML_SUCCESS;
		if (registered_gpu_lost(set))
			return NVML_ERROR_GPU_IS_LOST;
		int64_t left = end - now_ms();
		if (left <= 0)
			return NVML_ERROR_TIMEOUT;
		fault_wait(nvml.root, left > INT32_MAX ? INT32_MAX : (int)left);
	}
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data,
			      unsigned timeout)
{
	return nvmlEventSetWait_v2(set, data, timeout);
}
