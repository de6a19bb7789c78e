/*
 * Prints what NVML says of the processes of a card, a line for each way to ask:
 * the name, the result and the count when asked without an array, then the
 * result and the processes with one; and the same with one place too few.
 *
 *   processes INDEX
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/functions.h"

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);

#define ROOM 64

static void *nvml;
static nvmlDevice_t device;

static void *find(const char *name)
{
	void *found = dlsym(nvml, name);

	if (!found) {
		fprintf(stderr, "no %s\n", name);
		exit(2);
	}
	return found;
}

static void ask_v1(const char *name)
{
	nvmlReturn_t (*call)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *) =
		find(name);
	nvmlProcessInfo_v1_t infos[ROOM];
	unsigned count = 0, room = ROOM;
	int result = call(device, &count, NULL);

	printf("%s: %d %u,", name, result, count);
	printf(" %d", call(device, &room, infos));
	for (unsigned i = 0; i < room; i++)
		printf(" %u:%llu", infos[i].pid, infos[i].usedGpuMemory >> 20);
	count = room ? room - 1 : 0;
	result = call(device, &count, infos);
	printf(", %d %u\n", result, count);
}

static void ask_v2(const char *name)
{
	nvmlReturn_t (*call)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) =
		find(name);
	nvmlProcessInfo_t infos[ROOM];
	unsigned count = 0, room = ROOM;
	int result = call(device, &count, NULL);

	printf("%s: %d %u,", name, result, count);
	printf(" %d", call(device, &room, infos));
	for (unsigned i = 0; i < room; i++)
		printf(" %u:%llu", infos[i].pid, infos[i].usedGpuMemory >> 20);
	count = room ? room - 1 : 0;
	result = call(device, &count, infos);
	printf(", %d %u\n", result, count);
}

static void ask_details(unsigned mode)
{
	__typeof__(nvmlDeviceGetRunningProcessDetailList) *call =
		find("nvmlDeviceGetRunningProcessDetailList");
	nvmlProcessDetail_v1_t details[ROOM];
	nvmlProcessDetailList_t list = { sizeof(list) | 1 << 24, mode, 0, NULL };
	int result = call(device, &list);

	printf("details %u: %d %u,", mode, result, list.numProcArrayEntries);
	list.procArray = details;
	list.numProcArrayEntries = ROOM;
	printf(" %d", call(device, &list));
	for (unsigned i = 0; i < list.numProcArrayEntries; i++)
		printf(" %u:%llu", details[i].pid,
		       details[i].usedGpuMemory >> 20);
	list.numProcArrayEntries -= list.numProcArrayEntries > 0;
	result = call(device, &list);
	printf(", %d %u\n", result, list.numProcArrayEntries);
}

/* What is wrong is refused as the driver refuses it. */
static void ask_wrongly(void)
{
	__typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *call =
		find("nvmlDeviceGetComputeRunningProcesses_v3");
	__typeof__(nvmlDeviceGetRunningProcessDetailList) *details =
		find("nvmlDeviceGetRunningProcessDetailList");
	nvmlProcessDetailList_t list = { .version = 7 };
	unsigned count = 1;

	printf("wrong: %d %d %d %d\n", call(device, NULL, NULL),
	       call(device, &count, NULL), details(device, NULL),
	       details(device, &list));
}

int main(int argc, char **argv)
{
	static const char *const kinds[] = { "Compute", "Graphics",
					     "MPSCompute" };
	char name[64];

	nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!nvml ||
	    ((__typeof__(nvmlInit_v2) *)find("nvmlInit_v2"))() ||
	    ((__typeof__(nvmlDeviceGetHandleByIndex_v2) *)find(
		    "nvmlDeviceGetHandleByIndex_v2"))(
		    (unsigned)atoi(argc > 1 ? argv[1] : "0"), &device))
		return 1;
	for (unsigned i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "nvmlDeviceGet%sRunningProcesses",
			 kinds[i]);
		ask_v1(name);
		strcat(name, "_v2");
		ask_v2(name);
		name[strlen(name) - 1] = '3';
		ask_v2(name);
		ask_details(i);
	}
	ask_wrongly();
	return 0;
}
