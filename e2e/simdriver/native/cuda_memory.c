/* Linear memory: cuMemAlloc and its kin, and what is known of a pointer. */
#include "cuda_state.h"

#include <stdlib.h>

#define PITCH_ALIGNMENT 512

/* Memory of its own blocks, which dies with the context. */
static CUresult alloc_region_locked(CUdeviceptr *pointer, uint64_t bytes,
				    enum region_kind kind, CUcontext context)
{
	struct region *region;

	/* First what costs nothing: an absurd size needs no trimmed pool. */
	if (bytes > cuda.devices[context->device].capacity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region = region_new_locked(kind, bytes, context->device);
	if (region == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region->context = context;
	if (!blocks_take_locked(region->device, region->span)) {
		region_free_locked(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!region_place_locked(region)) {
		blocks_give_locked(region->device, region->span);
		region_free_locked(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pointer = region->base;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (pointer == NULL || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	if (bytes > SMALL_MAX) {
		result = alloc_region_locked(pointer, bytes, REGION_DEVICE,
					     context);
	} else {
		CUdeviceptr small = arena_alloc_locked(context->arena, bytes);
		result = small == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
		if (small != 0)
			*pointer = small;
	}
	cuda_unlock();
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
			    size_t height, unsigned element_size)
{
	CUresult result = cuda_ready();
	size_t row, bytes;

	if (result != CUDA_SUCCESS)
		return result;
	if (pointer == NULL || pitch == NULL || width == 0 || height == 0 ||
	    (element_size != 4 && element_size != 8 && element_size != 16) ||
	    width > SIZE_MAX - PITCH_ALIGNMENT)
		return CUDA_ERROR_INVALID_VALUE;
	row = sim_round_up(width, PITCH_ALIGNMENT);
	if (__builtin_mul_overflow(row, height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuMemAlloc_v2(pointer, bytes);
	if (result == CUDA_SUCCESS)
		*pitch = row;
	return result;
}

/* All of it is taken to live on the device from the start; the real driver
 * moves pages when they are touched and can hold more than the card has. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (pointer == NULL || bytes == 0 ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	result = alloc_region_locked(pointer, bytes, REGION_MANAGED, context);
	cuda_unlock();
	return result;
}

static CUresult free_region_locked(struct region *region, CUdeviceptr pointer)
{
	if (pointer != region->base)
		return CUDA_ERROR_INVALID_VALUE;
	if (region->kind != REGION_FOREIGN)
		blocks_give_locked(region->device, region->span);
	region_remove_locked(region);
	region_free_locked(region);
	return CUDA_SUCCESS;
}

CUresult memory_free_locked(CUdeviceptr pointer)
{
	struct region *region = region_find_locked(pointer);

	if (region == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (region->pool != NULL)
		return pool_free_locked(region, pointer);
	switch (region->kind) {
	case REGION_SMALL:
		if (arena_size_locked(region, pointer) == 0)
			return CUDA_ERROR_INVALID_VALUE;
		arena_free_locked(region, pointer);
		return CUDA_SUCCESS;
	case REGION_DEVICE:
	case REGION_MANAGED:
	case REGION_FOREIGN:
		return free_region_locked(region, pointer);
	case REGION_GRAPH:
		return graph_memory_free_locked(region, pointer);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	CUresult result;

	if (context_current(&result) == NULL)
		return result;
	if (pointer == 0)
		return CUDA_SUCCESS;
	result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	result = memory_free_locked(pointer);
	cuda_unlock();
	return result;
}

/* Either pointer may be NULL. */
CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	const struct device *device = &cuda.devices[context->device];
	if (available != NULL)
		*available = device->total -
			     ledger_used_in(device->ledger_index,
					    device->partition.instance);
	if (total != NULL)
		*total = device->total;
	return CUDA_SUCCESS;
}

/* Finds the allocation that pointer lies in: its start, size and region. */
static struct region *allocation_locked(CUdeviceptr pointer, CUdeviceptr *base,
					uint64_t *bytes)
{
	struct region *region = region_find_locked(pointer);

	if (region == NULL)
		return NULL;
	*base = region->base;
	*bytes = region->bytes;
	if (region->kind == REGION_SMALL)
		*bytes = arena_range_locked(region, pointer, base);
	return pointer - *base < *bytes ? region : NULL;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size,
				 CUdeviceptr pointer)
{
	CUresult result;
	CUdeviceptr start;
	uint64_t bytes;

	if (context_current(&result) == NULL)
		return result;
	cuda_lock();
	struct region *region = allocation_locked(pointer, &start, &bytes);
	if (region == NULL || region->kind == REGION_HOST) {
		result = CUDA_ERROR_NOT_FOUND;
	} else {
		if (base != NULL)
			*base = start;
		if (size != NULL)
			*size = bytes;
		result = CUDA_SUCCESS;
	}
	cuda_unlock();
	return result;
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
	CUresult result = cuda_ready();
	CUdeviceptr start;
	uint64_t bytes;

	if (result != CUDA_SUCCESS)
		return result;
	if (value == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	struct region *region = allocation_locked(pointer, &start, &bytes);
	if (region == NULL) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
		*(unsigned *)value = region->kind == REGION_HOST ?
					     CU_MEMORYTYPE_HOST :
					     CU_MEMORYTYPE_DEVICE;
	} else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
		*(int *)value = region->device;
	} else if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) {
		*(CUcontext *)value = region->context;
	} else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
		*(CUdeviceptr *)value = pointer;
	} else if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
		*(unsigned char *)value = region->kind == REGION_MANAGED;
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	cuda_unlock();
	return result;
}

/* Page-locked host memory takes nothing from the card. */
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (pointer == NULL || bytes == 0 || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	result = CUDA_ERROR_OUT_OF_MEMORY;
	cuda_lock();
	struct region *region =
		region_new_locked(REGION_HOST, bytes, context->device);
	if (region != NULL) {
		region->context = context;
		if (region_place_locked(region)) {
			*pointer = (void *)region->base;
			result = CUDA_SUCCESS;
		} else {
			region_free_locked(region);
		}
	}
	cuda_unlock();
	return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
	return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
	CUresult result;

	if (context_current(&result) == NULL)
		return result;
	result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	struct region *region = region_find_locked((CUdeviceptr)pointer);
	if (region == NULL || region->kind != REGION_HOST ||
	    region->base != (CUdeviceptr)pointer) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		region_remove_locked(region);
		region_free_locked(region);
		result = CUDA_SUCCESS;
	}
	cuda_unlock();
	return result;
}
