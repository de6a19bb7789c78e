/*
 * An NVML with one card, for which it tells of the processes whose numbers are in
 * the environment (SAMPLES) how busy they are.
 */
#include <stdlib.h>
#include <string.h>

#include "../src/nvml_api.h"

#define UUID "GPU-00000001-aaaa-bbbb-cccc-0123456789ab"
#define EXPORT __attribute__((visibility("default")))

static unsigned pids[16], count;

static void read_pids(void)
{
	char *at = getenv("SAMPLES");

	for (count = 0; at && *at && count < 16;)
		pids[count++] = (unsigned)strtoul(at, &at, 10);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	read_pids();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index,
						  nvmlDevice_t *device)
{
	*device = (nvmlDevice_t)(void *)pids;
	return index != 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text,
				      unsigned size)
{
	(void)device;
	strncpy(text, UUID, size);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(
	nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
	unsigned *room, unsigned long long since)
{
	(void)device;
	(void)since;
	if (!samples || *room < count) {
		*room = count;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (unsigned i = 0; i < count; i++)
		samples[i] = (nvmlProcessUtilizationSample_t){
			.pid = pids[i], .timeStamp = i, .smUtil = 10 + i
		};
	*room = count;
	return count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t
nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
				      nvmlProcessesUtilizationInfo_t *all)
{
	(void)device;
	if (!all->procUtilArray || all->processSamplesCount < count) {
		all->processSamplesCount = count;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (unsigned i = 0; i < count; i++)
		all->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
			.pid = pids[i], .timeStamp = i, .smUtil = 10 + i
		};
	all->processSamplesCount = count;
	return count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
