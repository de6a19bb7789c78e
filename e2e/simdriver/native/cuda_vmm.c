/* Virtual memory management: address ranges, and what is mapped into them. */
#include "cuda_state.h"

#include <stdlib.h>

/* One cuMemMap; each of its blocks in the range points here. */
struct mapping {
	struct allocation *allocation;
	CUdeviceptr base;
	uint64_t bytes;
};

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

	if (region == NULL || allocation == NULL ||
	    size > allocation_bytes(allocation))
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
	allocation_mapped(allocation);
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
	result = map_locked(pointer, size, allocation_find_locked(handle));
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
		allocation_unmapped_locked(mapping->allocation);
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
	if (mapping == NULL)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!allocation_retain_locked(mapping->allocation, handle))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	cuda_unlock();
	return result;
}
