/*
 * Virtual memory management: physical allocations behind handles, and address
 * ranges they are mapped into. Physical memory goes back to the card when the
 * last reference to its handle and its last mapping are gone, in any order.
 */
#include "cuda_state.h"

#include <stdlib.h>

struct allocation {
	CUmemAllocationProp properties;
	uint64_t bytes;
	unsigned references, mappings;
	CUmemGenericAllocationHandle handle; /* 0 when nobody has one */
};

/* One cuMemMap; each of its blocks in the range points here. */
struct mapping {
	struct allocation *allocation;
	CUdeviceptr base;
	uint64_t bytes;
};

static struct allocation **handles; /* handle - 1 is the index */
static size_t handle_room, handle_hint;

static struct allocation *of_handle_locked(CUmemGenericAllocationHandle handle)
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
	if (on_device(&allocation->properties))
		blocks_give_locked(allocation->properties.location.id,
				   allocation->bytes);
	free(allocation);
}

struct allocation *allocation_map_locked(CUmemGenericAllocationHandle handle)
{
	struct allocation *allocation = of_handle_locked(handle);

	if (allocation != NULL)
		allocation->mappings++;
	return allocation;
}

void allocation_unmap_locked(struct allocation *allocation)
{
	allocation->mappings--;
	settle_locked(allocation);
}

static CUresult create_locked(CUmemGenericAllocationHandle *handle,
			      uint64_t bytes,
			      const CUmemAllocationProp *properties)
{
	CUdevice device = properties->location.id;
	struct allocation *made = calloc(1, sizeof(*made));

	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->properties = *properties;
	made->bytes = bytes;
	if (on_device(properties) && !blocks_take_locked(device, bytes)) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!give_handle_locked(made)) {
		settle_locked(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	made->references = 1;
	*handle = made->handle;
	return CUDA_SUCCESS;
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
	result = create_locked(handle, size, properties);
	cuda_unlock();
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	struct allocation *allocation = of_handle_locked(handle);
	if (allocation == NULL) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		allocation->references--;
		settle_locked(allocation);
	}
	cuda_unlock();
	return result;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size,
			     size_t alignment, CUdeviceptr address,
			     unsigned long long flags)
{
	CUresult result = cuda_ready();

	(void)address; /* a wish, which the driver may ignore */
	if (result != CUDA_SUCCESS)
		return result;
	if (pointer == NULL || size == 0 || size % SIM_BLOCK != 0 ||
	    (alignment & (alignment - 1)) != 0 || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct region *region = calloc(1, sizeof(*region));
	if (region == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region->kind = REGION_RESERVED;
	region->bytes = region->span = size;
	region->mappings = calloc(size / SIM_BLOCK, sizeof(struct mapping *));
	cuda_lock();
	region->base = address_reserve_locked(
		size, alignment > SIM_BLOCK ? alignment : SIM_BLOCK, false);
	bool placed = region->mappings != NULL && region->base != 0 &&
		      region_place_locked(region);
	if (!placed && region->base != 0)
		address_release_locked(region->base, size, false);
	cuda_unlock();
	if (!placed) {
		free(region->mappings);
		free(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pointer = region->base;
	return CUDA_SUCCESS;
}

/* The reservation that holds [pointer, pointer + size), whole blocks. */
static struct region *reservation_locked(CUdeviceptr pointer, size_t size)
{
	struct region *region = region_find_locked(pointer);

	if (region == NULL || region->kind != REGION_RESERVED || size == 0 ||
	    pointer % SIM_BLOCK != 0 || size % SIM_BLOCK != 0 ||
	    size > region->span - (pointer - region->base))
		return NULL;
	return region;
}

static struct mapping **entries_at(struct region *region, CUdeviceptr pointer)
{
	return &region->mappings[(pointer - region->base) / SIM_BLOCK];
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	struct region *region = reservation_locked(pointer, size);
	if (region == NULL || region->base != pointer || region->span != size)
		result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; result == CUDA_SUCCESS && i < size / SIM_BLOCK; i++)
		if (region->mappings[i] != NULL)
			result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		region_remove_locked(region);
		free(region->mappings);
		region_free_locked(region);
	}
	cuda_unlock();
	return result;
}

static CUresult map_locked(CUdeviceptr pointer, size_t size,
			   struct allocation *allocation)
{
	struct region *region = reservation_locked(pointer, size);

	if (region == NULL || allocation == NULL || size > allocation->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	struct mapping **entries = entries_at(region, pointer);
	for (size_t i = 0; i < size / SIM_BLOCK; i++)
		if (entries[i] != NULL)
			return CUDA_ERROR_INVALID_VALUE;
	struct mapping *mapping = malloc(sizeof(*mapping));
	if (mapping == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mapping = (struct mapping){ allocation, pointer, size };
	for (size_t i = 0; i < size / SIM_BLOCK; i++)
		entries[i] = mapping;
	allocation->mappings++;
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (offset != 0 || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = map_locked(pointer, size, of_handle_locked(handle));
	cuda_unlock();
	return result;
}

/* Whether the range is covered by whole mappings and nothing else. */
static bool whole_mappings(struct region *region, CUdeviceptr pointer,
			   size_t size)
{
	CUdeviceptr end = pointer + size;

	while (pointer < end) {
		struct mapping *mapping = *entries_at(region, pointer);
		if (mapping == NULL || mapping->base != pointer ||
		    mapping->bytes > end - pointer)
			return false;
		pointer += mapping->bytes;
	}
	return true;
}

static CUresult unmap_locked(CUdeviceptr pointer, size_t size)
{
	struct region *region = reservation_locked(pointer, size);
	CUdeviceptr end = pointer + size;

	if (region == NULL || !whole_mappings(region, pointer, size))
		return CUDA_ERROR_INVALID_VALUE;
	while (pointer < end) {
		struct mapping **entries = entries_at(region, pointer);
		struct mapping *mapping = *entries;
		for (uint64_t i = 0; i < mapping->bytes / SIM_BLOCK; i++)
			entries[i] = NULL;
		pointer += mapping->bytes;
		allocation_unmap_locked(mapping->allocation);
		free(mapping);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	result = unmap_locked(pointer, size);
	cuda_unlock();
	return result;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size,
			const CUmemAccessDesc *access, size_t count)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (access == NULL || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    !cuda_is_device(access[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	struct region *region = reservation_locked(pointer, size);
	if (region == NULL || !whole_mappings(region, pointer, size))
		result = CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
				     void *address)
{
	CUresult result = cuda_ready();
	CUdeviceptr block = (CUdeviceptr)address / SIM_BLOCK * SIM_BLOCK;

	if (result != CUDA_SUCCESS)
		return result;
	if (handle == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	struct region *region = reservation_locked(block, SIM_BLOCK);
	struct mapping *mapping =
		region == NULL ? NULL : *entries_at(region, block);
	if (mapping == NULL) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		struct allocation *allocation = mapping->allocation;
		if (allocation->handle == 0 && !give_handle_locked(allocation))
			result = CUDA_ERROR_OUT_OF_MEMORY;
		if (result == CUDA_SUCCESS) {
			allocation->references++;
			*handle = allocation->handle;
		}
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
	struct allocation *allocation = of_handle_locked(handle);
	if (allocation == NULL)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*properties = allocation->properties;
	cuda_unlock();
	return result;
}
