/*
 * Memory of graphs. An allocation's address is known when its node is made; the
 * card's memory is taken when a graph is launched that has not enough, from then
 * on for all graphs of the device, and kept until it is trimmed.
 */
#include "cuda_work.h"

#include <stdlib.h>

static struct {
	uint64_t reserved, reserved_high; /* taken from the card */
	uint64_t live; /* bytes that launches have left allocated */
	uint64_t running; /* of these and of launches that are not done */
	uint64_t until; /* when those are */
	uint64_t used_high;
} pools[SIM_MAX_GPUS];

static uint64_t used(CUdevice device)
{
	if (pools[device].running > pools[device].live &&
	    work_done_locked(device, pools[device].until))
		pools[device].running = 0;
	return pools[device].running > pools[device].live ?
		       pools[device].running :
		       pools[device].live;
}

static void note_high(CUdevice device)
{
	if (pools[device].used_high < used(device))
		pools[device].used_high = used(device);
	if (pools[device].reserved_high < pools[device].reserved)
		pools[device].reserved_high = pools[device].reserved;
}

struct graph_memory *graph_memory_new_locked(CUdevice device, uint64_t bytes)
{
	struct graph_memory *memory = calloc(1, sizeof(*memory));

	if (memory == NULL)
		return NULL;
	memory->references = 1;
	memory->region = region_new_locked(REGION_GRAPH, bytes, device);
	if (memory->region == NULL) {
		free(memory);
		return NULL;
	}
	memory->region->graph = memory;
	if (!region_place_locked(memory->region)) {
		region_free_locked(memory->region);
		free(memory);
		return NULL;
	}
	return memory;
}

struct graph_memory *graph_memory_find_locked(CUdeviceptr pointer)
{
	struct region *region = region_find_locked(pointer);

	return region != NULL && region->kind == REGION_GRAPH &&
			       region->base == pointer ?
		       region->graph :
		       NULL;
}

static void discard_unused(struct graph_memory *memory)
{
	if (memory->references > 0 || memory->live)
		return;
	region_remove_locked(memory->region);
	region_free_locked(memory->region);
	free(memory);
}

void graph_memory_drop_locked(struct graph_memory *memory)
{
	memory->references--;
	discard_unused(memory);
}

void graph_memory_set_live_locked(struct graph_memory *memory, bool live)
{
	uint64_t span = memory->region->span;

	if (memory->live == live)
		return;
	memory->live = live;
	pools[memory->region->device].live += live ? span : -span;
	note_high(memory->region->device);
	discard_unused(memory);
}

CUresult graph_memory_free_locked(struct region *region, CUdeviceptr pointer)
{
	if (pointer != region->base || !region->graph->live)
		return CUDA_ERROR_INVALID_VALUE;
	graph_memory_set_live_locked(region->graph, false);
	return CUDA_SUCCESS;
}

bool graph_memory_reserve_locked(CUdevice device, uint64_t most)
{
	uint64_t need = pools[device].live + most;

	if (need <= pools[device].reserved)
		return true;
	if (!blocks_take_locked(device, need - pools[device].reserved))
		return false;
	pools[device].reserved = need;
	note_high(device);
	return true;
}

void graph_memory_launched_locked(CUdevice device, uint64_t most,
				  uint64_t so_far)
{
	uint64_t need = pools[device].live + most;

	if (used(device) < need)
		pools[device].running = need;
	pools[device].until = so_far;
	note_high(device);
}

static CUresult check(CUdevice device, int attribute, void *value)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return value == NULL ||
			       attribute < CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ||
			       attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH ?
		       CUDA_ERROR_INVALID_VALUE :
		       CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute,
				      void *value)
{
	CUresult result = check(device, attribute, value);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	const uint64_t values[] = {
		[CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = used(device),
		[CU_GRAPH_MEM_ATTR_USED_MEM_HIGH] = pools[device].used_high,
		[CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] =
			pools[device].reserved,
		[CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] =
			pools[device].reserved_high,
	};
	*(uint64_t *)value = values[attribute];
	cuda_unlock();
	return CUDA_SUCCESS;
}

/* Only the peaks can be set, and only back. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int attribute,
				      void *value)
{
	CUresult result = check(device, attribute, value);

	if (result != CUDA_SUCCESS)
		return result;
	if (*(uint64_t *)value != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		pools[device].used_high = used(device);
	else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		pools[device].reserved_high = pools[device].reserved;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	uint64_t ignored;
	CUresult result =
		check(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &ignored);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	uint64_t keep = used(device);
	if (pools[device].reserved > keep) {
		blocks_give_locked(device, pools[device].reserved - keep);
		pools[device].reserved = keep;
	}
	cuda_unlock();
	return CUDA_SUCCESS;
}
