/* Who uses a device. All simulated work is compute. */
#include "nvml_state.h"

struct list {
	unsigned gpu, room, count;
	uint64_t compute; /* of a MIG device: its serial */
	nvmlProcessInfo_t *infos;
	nvmlProcessInfo_v1_t *infos_v1;
	nvmlProcessDetail_v1_t *details; /* one of the three */
};

static void add(void *context, const struct ledger_slot *slot, uint32_t pid)
{
	struct list *list = context;
	uint64_t used = slot->used[list->gpu];

	const struct ledger_partition *p = &slot->partition;
	bool on_part = p->instance != 0 && p->gpu == list->gpu;

	if (used == 0 ||
	    (list->compute != 0 && !(on_part && p->compute == list->compute)))
		return;
	unsigned instance = on_part ? p->instance_number : NVML_NO_INSTANCE;
	unsigned compute = on_part ? p->compute_number : NVML_NO_INSTANCE;
	unsigned at = list->count++;
	if (at >= list->room)
		return;
	if (list->infos_v1 != NULL)
		list->infos_v1[at] = (nvmlProcessInfo_v1_t){ pid, used };
	else if (list->details != NULL)
		list->details[at] = (nvmlProcessDetail_v1_t){
			pid, used, instance, compute, 0
		};
	else
		list->infos[at] = (nvmlProcessInfo_t){
			pid, used, instance, compute
		};
}

/* *count is the room in the array; when it is short, it becomes what there is.
 * A caller asks first with 0. */
static nvmlReturn_t fill(nvmlDevice_t device, struct list *list,
			 unsigned *count)
{
	list->gpu = device->ledger_index;
	list->compute = mig_device_compute(device);
	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	bool have_array = list->infos != NULL || list->infos_v1 != NULL ||
			  list->details != NULL;
	if (!have_array && *count != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	list->room = *count;
	if (ledger_open(nvml.root))
		ledger_each(add, list);
	*count = list->count;
	return list->count > list->room ? NVML_ERROR_INSUFFICIENT_SIZE :
					  NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device,
						  unsigned *count,
						  nvmlProcessInfo_v1_t *infos)
{
	ENTER_ANY(device, count);
	struct list list = { .infos_v1 = infos };
	return fill(device, &list, count);
}

#define COMPUTE(name) \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *count, \
			  nvmlProcessInfo_t *infos) \
	{ \
		ENTER_ANY(device, count); \
		struct list list = { .infos = infos }; \
		return fill(device, &list, count); \
	} \
	_Static_assert(1, #name)

COMPUTE(nvmlDeviceGetComputeRunningProcesses_v2);
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v3);

#define NOBODY(name, info) \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *count, info *infos) \
	{ \
		(void)infos; \
		ENTER_ANY(device, count); \
		*count = 0; \
		return NVML_SUCCESS; \
	} \
	_Static_assert(1, #name)

NOBODY(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t);
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t);
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t);
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t);
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t);
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t);

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_t *all)
{
	ENTER_ANY(device, all);
	if (all->version != NVML_VERSIONED(nvmlProcessDetailList_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (all->mode > 2)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (all->mode != 0) {
		all->numProcArrayEntries = 0;
		return NVML_SUCCESS;
	}
	struct list list = { .details = all->procArray };
	return fill(device, &list, &all->numProcArrayEntries);
}
