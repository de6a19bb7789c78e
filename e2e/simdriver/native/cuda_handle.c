/*
 * Physical allocations behind handles. The memory goes back to the card when the
 * last reference to its handle and its last mapping are gone, in any order.
 */
#include "cuda_state.h"

#include <stdlib.h>

struct allocation {
	CUmemAllocationProp properties;
	uint64_t bytes;
	unsigned references, mappings;
	CUmemGenericAllocationHandle handle; /* 0 when nobody has one */
	bool own; /* of memory that this process took */
};

static struct allocation **handles; /* handle - 1 is the index */
static size_t handle_room, handle_hint;

struct allocation *allocation_find_locked(CUmemGenericAllocationHandle handle)
{
	return handle == 0 || handle > handle_room ? NULL : handles[handle - 1];
}

static bool give_handle_locked(struct allocation *allocation)
{
	while (handle_hint < handle_room && handles[handle_hint] != NULL)
		handle_hint++;
	if (handle_hint == handle_room) {
		size_t room = handle_room == 0 ? 64 : handle_room * 2;
		struct allocation **grown =
			realloc(handles, room * sizeof(*grown));
		if (grown == NULL)
			return false;
		for (size_t i = handle_room; i < room; i++)
			grown[i] = NULL;
		handles = grown;
		handle_room = room;
	}
	handles[handle_hint] = allocation;
	allocation->handle = handle_hint + 1;
	return true;
}

bool allocation_retain_locked(struct allocation *allocation,
			      CUmemGenericAllocationHandle *handle)
{
	if (allocation->handle == 0 && !give_handle_locked(allocation))
		return false;
	allocation->references++;
	*handle = allocation->handle;
	return true;
}

static bool on_device(const CUmemAllocationProp *properties)
{
	return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (properties == NULL ||
	    properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (on_device(properties))
		return cuda_is_device(properties->location.id) ?
			       CUDA_SUCCESS :
			       CUDA_ERROR_INVALID_DEVICE;
	return properties->location.type >= CU_MEM_LOCATION_TYPE_HOST &&
			       properties->location.type <=
				       CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
}

static void settle_locked(struct allocation *allocation)
{
	if (allocation->references == 0 && allocation->handle != 0) {
		handles[allocation->handle - 1] = NULL;
		if (handle_hint > allocation->handle - 1)
			handle_hint = allocation->handle - 1;
		allocation->handle = 0;
	}
	if (allocation->references != 0 || allocation->mappings != 0)
		return;
	if (allocation->own && on_device(&allocation->properties))
		blocks_give_locked(allocation->properties.location.id,
				   allocation->bytes);
	free(allocation);
}

CUresult allocation_new_locked(CUmemGenericAllocationHandle *handle,
			       uint64_t bytes,
			       const CUmemAllocationProp *properties, bool own)
{
	CUdevice device = properties->location.id;
	struct allocation *made = calloc(1, sizeof(*made));

	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->properties = *properties;
	made->bytes = bytes;
	made->own = own;
	if (own && on_device(properties) && !blocks_take_locked(device, bytes)) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!allocation_retain_locked(made, handle)) {
		settle_locked(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

uint64_t allocation_bytes(const struct allocation *allocation)
{
	return allocation->bytes;
}

const CUmemAllocationProp *
allocation_properties(const struct allocation *allocation)
{
	return &allocation->properties;
}

void allocation_mapped(struct allocation *allocation)
{
	allocation->mappings++;
}

void allocation_unmapped_locked(struct allocation *allocation)
{
	allocation->mappings--;
	settle_locked(allocation);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *properties,
		     unsigned long long flags)
{
	CUresult result = check_properties(properties);

	if (result != CUDA_SUCCESS)
		return result;
	if (handle == NULL || size == 0 || size % SIM_BLOCK != 0 || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = allocation_new_locked(handle, size, properties, true);
	cuda_unlock();
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	struct allocation *allocation = allocation_find_locked(handle);
	if (allocation == NULL) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		allocation->references--;
		settle_locked(allocation);
	}
	cuda_unlock();
	return result;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity,
				       const CUmemAllocationProp *properties,
				       int option)
{
	CUresult result = check_properties(properties);

	if (result != CUDA_SUCCESS)
		return result;
	if (granularity == NULL || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = SIM_BLOCK;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (properties == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	struct allocation *allocation = allocation_find_locked(handle);
	if (allocation == NULL)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*properties = allocation->properties;
	cuda_unlock();
	return result;
}
