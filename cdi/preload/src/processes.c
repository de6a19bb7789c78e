/*
 * The processes that NVML shows of a limited GPU: those of the shares, from
 * their regions, as far as they are in this process's pid namespace, with what
 * they are charged. What others do on the GPU is not shown, and a number of
 * another namespace would mean nothing here.
 *
 * The driver is asked first, so that an error is its own.
 */
#include <string.h>

#include "charge.h"
#include "functions.h"
#include "region.h"
#include "view.h"

#define PROCESSES_MAX AQ_SLOT_COUNT

struct process {
	uint32_t pid;
	uint64_t bytes;
};

struct processes {
	unsigned count;
	struct process at[PROCESSES_MAX];
};

/* A process that has shares of the GPU twice has a slot in each. */
static void add(struct processes *list, uint32_t pid, uint64_t bytes)
{
	for (unsigned i = 0; i < list->count; i++) {
		if (list->at[i].pid == pid) {
			list->at[i].bytes += bytes;
			return;
		}
	}
	if (list->count < PROCESSES_MAX)
		list->at[list->count++] = (struct process){ pid, bytes };
}

static void list_processes(const struct aq_gpu *gpu, struct processes *list)
{
	uint64_t ours = aq_region_pidns();

	list->count = 0;
	for (unsigned i = 0; i < gpu->share_count; i++) {
		struct aq_share *share = aq_gpu_share(gpu, i);
		unsigned hi = aq_region_hi(share);

		for (unsigned j = 0; j < hi; j++) {
			const struct aq_usage_slot *slot =
				aq_region_slot(share, j);

			if (slot->pid && slot->pidns_ino == ours &&
			    aq_region_alive(share, j))
				add(list, slot->pid,
				    aq_word_used(aq_region_word(share, j))
					    << AQ_UNIT_SHIFT);
		}
	}
}

/* NVML's way to give a list: *count is the room in the array, and becomes what
 * there is; too little room is an error. */
static nvmlReturn_t give(const struct processes *list, unsigned *count,
			 void (*put)(void *array, unsigned i,
				     const struct process *process),
			 void *array)
{
	unsigned room = array ? *count : 0;

	*count = list->count;
	if (list->count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < list->count; i++)
		put(array, i, &list->at[i]);
	return NVML_SUCCESS;
}

static void put_v1(void *array, unsigned i, const struct process *process)
{
	((nvmlProcessInfo_v1_t *)array)[i] = (nvmlProcessInfo_v1_t){
		process->pid, process->bytes
	};
}

static void put_v2(void *array, unsigned i, const struct process *process)
{
	((nvmlProcessInfo_t *)array)[i] = (nvmlProcessInfo_t){
		process->pid, process->bytes, NVML_NO_INSTANCE,
		NVML_NO_INSTANCE
	};
}

static void put_detail(void *array, unsigned i, const struct process *process)
{
	((nvmlProcessDetail_v1_t *)array)[i] = (nvmlProcessDetail_v1_t){
		process->pid, process->bytes, NVML_NO_INSTANCE,
		NVML_NO_INSTANCE, 0
	};
}

static bool answered(nvmlReturn_t result)
{
	return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

/* compute: our processes do nothing else. Arguments that are wrong are the
 * driver's to refuse. */
#define RUNNING_PROCESSES(name, type, put, compute)                         \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *infos) \
	{                                                                   \
		struct processes list = { .count = 0 };                     \
		struct aq_gpu *gpu = NULL;                                  \
		unsigned none = 0;                                          \
		nvmlReturn_t result;                                        \
									    \
		if (!aq_nvml() || !aq_real.name)                            \
			return NVML_ERROR_FUNCTION_NOT_FOUND;               \
		if (!count || (!infos && *count) ||                         \
		    !aq_gpu_of_nvml(device, &gpu) || !gpu)                  \
			return aq_real.name(device, count, infos);          \
		result = aq_real.name(device, &none, NULL);                 \
		if (!answered(result))                                      \
			return result;                                      \
		if (compute)                                                \
			list_processes(gpu, &list);                         \
		return give(&list, count, put, infos);                      \
	}

RUNNING_PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t,
		  put_v1, true)
RUNNING_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t,
		  put_v2, true)
RUNNING_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t,
		  put_v2, true)
RUNNING_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t,
		  put_v1, false)
RUNNING_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t,
		  put_v2, false)
RUNNING_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t,
		  put_v2, false)
RUNNING_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t,
		  put_v1, false)
RUNNING_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t,
		  put_v2, false)
RUNNING_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t,
		  put_v2, false)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_t *all)
{
	struct processes list = { .count = 0 };
	nvmlProcessDetailList_t none;
	struct aq_gpu *gpu = NULL;
	nvmlReturn_t result;

	if (!aq_nvml() || !aq_real.nvmlDeviceGetRunningProcessDetailList)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (!all || (!all->procArray && all->numProcArrayEntries) ||
	    !aq_gpu_of_nvml(device, &gpu) || !gpu)
		return aq_real.nvmlDeviceGetRunningProcessDetailList(device,
								     all);
	none = *all;
	none.numProcArrayEntries = 0;
	none.procArray = NULL;
	result = aq_real.nvmlDeviceGetRunningProcessDetailList(device, &none);
	if (!answered(result))
		return result;
	if (all->mode == NVML_DETAIL_COMPUTE)
		list_processes(gpu, &list);
	return give(&list, &all->numProcArrayEntries, put_detail,
		    all->procArray);
}

static bool is_listed(const struct processes *list, uint32_t pid)
{
	for (unsigned i = 0; i < list->count; i++)
		if (list->at[i].pid == pid)
			return true;
	return false;
}

/* Moves what is of listed processes to the front; how many they are. */
static unsigned keep_listed(const struct aq_gpu *gpu, void *samples,
			    unsigned count, size_t size, size_t pid_offset)
{
	struct processes list;
	unsigned kept = 0;

	list_processes(gpu, &list);
	for (unsigned i = 0; i < count; i++) {
		char *sample = (char *)samples + i * size;
		uint32_t pid;

		memcpy(&pid, sample + pid_offset, sizeof(pid));
		if (is_listed(&list, pid))
			memmove((char *)samples + kept++ * size, sample, size);
	}
	return kept;
}

/* Without an array the driver says how much room is needed, which says nothing
 * of anybody. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(
	nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
	unsigned *count, unsigned long long since)
{
	struct aq_gpu *gpu = NULL;
	nvmlReturn_t result;

	if (!aq_nvml() || !aq_real.nvmlDeviceGetProcessUtilization)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	result = aq_real.nvmlDeviceGetProcessUtilization(device, samples, count,
							 since);
	if (result != NVML_SUCCESS || !samples ||
	    !aq_gpu_of_nvml(device, &gpu) || !gpu)
		return result;
	*count = keep_listed(gpu, samples, *count, sizeof(*samples),
			     offsetof(nvmlProcessUtilizationSample_t, pid));
	return *count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t
nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
				      nvmlProcessesUtilizationInfo_t *all)
{
	struct aq_gpu *gpu = NULL;
	nvmlReturn_t result;

	if (!aq_nvml() || !aq_real.nvmlDeviceGetProcessesUtilizationInfo)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	result = aq_real.nvmlDeviceGetProcessesUtilizationInfo(device, all);
	if (result != NVML_SUCCESS || !all->procUtilArray ||
	    !aq_gpu_of_nvml(device, &gpu) || !gpu)
		return result;
	all->processSamplesCount = keep_listed(
		gpu, all->procUtilArray, all->processSamplesCount,
		sizeof(*all->procUtilArray),
		offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
	return all->processSamplesCount ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
