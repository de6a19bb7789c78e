/* Prints what NVML says of how busy the processes of card 0 are, both ways to
 * ask: the room that is needed, the result, and pid:percent of each. */
#include <dlfcn.h>
#include <stdio.h>

#include "../src/functions.h"

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);

#define FIND(name) ((__typeof__(name) *)dlsym(nvml, #name))

int main(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlProcessUtilizationSample_t samples[16];
	nvmlProcessUtilizationInfo_v1_t infos[16];
	nvmlProcessesUtilizationInfo_t all = { sizeof(all) | 1 << 24, 0, 0, NULL };
	unsigned count = 0;
	nvmlDevice_t device;
	int result;

	if (!nvml || FIND(nvmlInit_v2)() ||
	    FIND(nvmlDeviceGetHandleByIndex_v2)(0, &device))
		return 1;
	FIND(nvmlDeviceGetProcessUtilization)(device, NULL, &count, 0);
	printf("samples %u", count);
	count = 16;
	result = FIND(nvmlDeviceGetProcessUtilization)(device, samples, &count,
						       0);
	printf(" %d", result);
	for (unsigned i = 0; !result && i < count; i++)
		printf(" %u:%u", samples[i].pid, samples[i].smUtil);
	FIND(nvmlDeviceGetProcessesUtilizationInfo)(device, &all);
	printf("\ninfos %u", all.processSamplesCount);
	all.processSamplesCount = 16;
	all.procUtilArray = infos;
	result = FIND(nvmlDeviceGetProcessesUtilizationInfo)(device, &all);
	printf(" %d", result);
	for (unsigned i = 0; !result && i < all.processSamplesCount; i++)
		printf(" %u:%u", infos[i].pid, infos[i].smUtil);
	printf("\n");
	return 0;
}
