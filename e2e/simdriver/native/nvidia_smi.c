/*
 * nvidia-smi, as much of it as people look at: a table of the cards and one of
 * the processes, or with -L a line a card and MIG device. Like the real one it finds NVML by
 * dlopen, so a preload library sees its calls in the same way.
 */
#include "nvml_mig_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

/* Calls the function of that name. */
#define CALL(name, ...) \
	(((__typeof__(&name))symbol(#name))(__VA_ARGS__))

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);

	if (found == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return found;
}

static void check(const char *what, nvmlReturn_t result)
{
	if (result == NVML_SUCCESS)
		return;
	printf("%s: %s\n", what, CALL(nvmlErrorString, result));
	exit((int)result);
}

static nvmlDevice_t device_at(unsigned index)
{
	nvmlDevice_t device = NULL;
	nvmlReturn_t result =
		CALL(nvmlDeviceGetHandleByIndex_v2, index, &device);

	if (result == NVML_SUCCESS)
		return device;
	printf("Unable to determine the device handle for GPU%u: %s\n", index,
	       CALL(nvmlErrorString, result));
	return NULL;
}

/* The profile is the end of the device's name: "NVIDIA H100 MIG 1g.10gb". */
static void list_mig_devices(nvmlDevice_t device)
{
	unsigned max = 0;

	CALL(nvmlDeviceGetMaxMigDeviceCount, device, &max);
	for (unsigned i = 0; i < max; i++) {
		char name[192] = "", uuid[96] = "";
		nvmlDevice_t mig = NULL;
		if (CALL(nvmlDeviceGetMigDeviceHandleByIndex, device, i,
			 &mig) != NVML_SUCCESS)
			continue;
		CALL(nvmlDeviceGetName, mig, name, sizeof(name));
		CALL(nvmlDeviceGetUUID, mig, uuid, sizeof(uuid));
		const char *profile = strstr(name, " MIG ");
		printf("  MIG %-11s Device %2u: (UUID: %s)\n",
		       profile == NULL ? name : profile + strlen(" MIG "), i,
		       uuid);
	}
}

static void list_device(unsigned index)
{
	char name[96] = "", uuid[96] = "";
	nvmlDevice_t device = device_at(index);

	if (device == NULL)
		return;
	CALL(nvmlDeviceGetName, device, name, sizeof(name));
	CALL(nvmlDeviceGetUUID, device, uuid, sizeof(uuid));
	printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
	list_mig_devices(device);
}

static void print_device(unsigned index)
{
	char name[96] = "";
	nvmlPciInfo_t pci = { .busId = "" };
	nvmlMemory_t memory = { 0, 0, 0 };
	nvmlUtilization_t rates = { 0, 0 };
	nvmlDevice_t device = device_at(index);

	if (device == NULL)
		return;
	CALL(nvmlDeviceGetName, device, name, sizeof(name));
	CALL(nvmlDeviceGetPciInfo_v3, device, &pci);
	CALL(nvmlDeviceGetMemoryInfo, device, &memory);
	CALL(nvmlDeviceGetUtilizationRates, device, &rates);
	printf("| %3u  %-29s %16s | %6lluMiB / %6lluMiB | %3u%% |\n", index,
	       name, pci.busId, memory.used >> 20, memory.total >> 20,
	       rates.gpu);
}

static void print_processes(unsigned index)
{
	nvmlProcessInfo_t infos[256];
	unsigned count = 256;
	nvmlDevice_t device = device_at(index);

	if (device == NULL ||
	    CALL(nvmlDeviceGetComputeRunningProcesses_v3, device, &count,
		 infos) != NVML_SUCCESS)
		return;
	for (unsigned i = 0; i < count; i++) {
		char name[64] = "[Not Found]";
		CALL(nvmlSystemGetProcessName, infos[i].pid, name,
		     sizeof(name));
		printf("| %3u %10u   C   %-47s %11lluMiB |\n", index,
		       infos[i].pid, name, infos[i].usedGpuMemory >> 20);
	}
}

static void rule(void)
{
	puts("+------------------------------------------------------------"
	     "--------------------------+");
}

static void print_tables(unsigned count)
{
	char version[96] = "";
	int cuda = 0;

	check("driver version", CALL(nvmlSystemGetDriverVersion, version,
				     sizeof(version)));
	CALL(nvmlSystemGetCudaDriverVersion_v2, &cuda);
	rule();
	printf("| NVIDIA-SMI (simulated)   Driver Version: %-12s "
	       "CUDA Version: %2d.%d             |\n",
	       version, cuda / 1000, cuda % 1000 / 10);
	rule();
	for (unsigned i = 0; i < count; i++)
		print_device(i);
	rule();
	puts("| GPU        PID Type  Process name                         "
	     "                GPU Memory |");
	for (unsigned i = 0; i < count; i++)
		print_processes(i);
	rule();
}

int main(int argc, char **argv)
{
	unsigned count = 0;

	library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	if (library == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 12;
	}
	check("NVIDIA-SMI has failed", CALL(nvmlInit_v2));
	check("device count", CALL(nvmlDeviceGetCount_v2, &count));
	if (argc > 1 && strcmp(argv[1], "-L") == 0)
		for (unsigned i = 0; i < count; i++)
			list_device(i);
	else
		print_tables(count);
	CALL(nvmlShutdown);
	return 0;
}
