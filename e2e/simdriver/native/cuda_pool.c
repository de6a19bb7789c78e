/*
 * Memory pools. What a pool takes of the card is its *reserved* memory, in
 * whole blocks, and it keeps blocks that are freed until a synchronisation finds
 * more than the release threshold, someone trims it, or the card is full.
 *
 * A free in stream order is done at once, even if the stream has not come to it:
 * nobody can touch the memory too late.
 */
#include "cuda_state.h"

#include <stdlib.h>

struct CUmemPoolHandle_st {
	CUdevice device;
	bool fixed;	/* a device's default pool: never destroyed */
	bool destroyed; /* goes when its last allocation is freed */
	bool imported;	/* reserved is another's */
	struct arena *arena;
	uint64_t reserved, reserved_high; /* blocks taken from the card */
	uint64_t blocks;		  /* of those, blocks in use */
	uint64_t used, used_high;	  /* bytes of live allocations */
	uint64_t threshold, max;
	int reuse[3]; /* attributes 1 to 3: kept, without effect */
	CUmemoryPool next;
};

static CUmemoryPool pools;

bool pool_valid_locked(CUmemoryPool pool)
{
	for (CUmemoryPool at = pools; at != NULL; at = at->next)
		if (at == pool)
			return !pool->destroyed;
	return false;
}

static void trim_locked(CUmemoryPool pool, uint64_t keep)
{
	uint64_t floor = sim_round_up(keep, SIM_BLOCK);

	if (floor < pool->blocks)
		floor = pool->blocks;
	if (pool->imported || keep > pool->reserved || pool->reserved <= floor)
		return;
	blocks_give_locked(pool->device, pool->reserved - floor);
	pool->reserved = floor;
}

static bool take_blocks_locked(CUmemoryPool pool, uint64_t bytes)
{
	/* Counted first, so that making room does not trim what this uses. */
	pool->blocks += bytes;
	if (pool->blocks > pool->reserved) {
		uint64_t need = pool->blocks - pool->reserved;
		if ((pool->max != 0 && pool->blocks > pool->max) ||
		    !blocks_take_locked(pool->device, need)) {
			pool->blocks -= bytes;
			return false;
		}
		pool->reserved += need;
		if (pool->reserved > pool->reserved_high)
			pool->reserved_high = pool->reserved;
	}
	return true;
}

static bool take_small_block(void *pool)
{
	return take_blocks_locked(pool, SIM_BLOCK);
}

static void give_small_block(void *pool)
{
	((CUmemoryPool)pool)->blocks -= SIM_BLOCK;
}

static CUmemoryPool new_pool_locked(CUdevice device, uint64_t max)
{
	static const struct arena_source source = {
		.take = take_small_block,
		.give = give_small_block,
	};
	CUmemoryPool pool = calloc(1, sizeof(*pool));

	if (pool == NULL)
		return NULL;
	pool->device = device;
	pool->max = max;
	for (int i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	pool->arena = arena_new(&source, pool, device, NULL, pool);
	if (pool->arena == NULL) {
		free(pool);
		return NULL;
	}
	pool->next = pools;
	pools = pool;
	return pool;
}

CUmemoryPool pool_import_locked(CUdevice device, uint64_t reserved)
{
	CUmemoryPool pool = new_pool_locked(device, 0);

	if (pool != NULL) {
		pool->imported = true;
		pool->reserved = reserved;
	}
	return pool;
}

bool pool_imported(CUmemoryPool pool)
{
	return pool != NULL && pool->imported;
}

CUdevice pool_device(CUmemoryPool pool)
{
	return pool->device;
}

static void discard_locked(CUmemoryPool pool)
{
	CUmemoryPool *link = &pools;

	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	arena_destroy_locked(pool->arena);
	free(pool);
}

static CUmemoryPool default_pool_locked(CUdevice device)
{
	struct device *d = &cuda.devices[device];

	if (d->default_pool == NULL) {
		d->default_pool = new_pool_locked(device, 0);
		if (d->default_pool != NULL)
			d->default_pool->fixed = true;
	}
	return d->default_pool;
}

CUmemoryPool pool_current_locked(CUdevice device)
{
	CUmemoryPool pool = cuda.devices[device].pool;

	return pool != NULL ? pool : default_pool_locked(device);
}

void pools_synchronise_locked(CUdevice device)
{
	for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
		if (pool->device == device)
			trim_locked(pool, pool->threshold);
}

bool pools_release_locked(CUdevice device)
{
	bool released = false;

	for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
		if (pool->device == device && !pool->imported &&
		    pool->reserved > pool->blocks) {
			trim_locked(pool, 0);
			released = true;
		}
	}
	return released;
}

static CUdeviceptr alloc_large_locked(CUmemoryPool pool, uint64_t bytes)
{
	struct region *region =
		region_new_locked(REGION_POOL, bytes, pool->device);

	if (region == NULL)
		return 0;
	region->pool = pool;
	if (!take_blocks_locked(pool, region->span)) {
		region_free_locked(region);
		return 0;
	}
	if (!region_place_locked(region)) {
		pool->blocks -= region->span;
		region_free_locked(region);
		return 0;
	}
	return region->base;
}

CUresult pool_alloc_locked(CUmemoryPool pool, CUdeviceptr *pointer,
			   uint64_t bytes)
{
	CUdeviceptr made = 0;

	if (pool != NULL && pool->imported)
		return CUDA_ERROR_INVALID_VALUE;
	if (pool == NULL || bytes > cuda.devices[pool->device].capacity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (bytes > SMALL_MAX)
		made = alloc_large_locked(pool, bytes);
	else
		made = arena_alloc_locked(pool->arena, bytes);
	if (made == 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool->used += sim_round_up(bytes, SMALL_UNIT);
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	*pointer = made;
	return CUDA_SUCCESS;
}

CUresult pool_free_locked(struct region *region, CUdeviceptr pointer)
{
	CUmemoryPool pool = region->pool;

	if (region->kind == REGION_SMALL) {
		uint64_t bytes = arena_size_locked(region, pointer);
		if (bytes == 0)
			return CUDA_ERROR_INVALID_VALUE;
		pool->used -= sim_round_up(bytes, SMALL_UNIT);
		arena_free_locked(region, pointer);
	} else {
		if (pointer != region->base)
			return CUDA_ERROR_INVALID_VALUE;
		pool->used -= sim_round_up(region->bytes, SMALL_UNIT);
		pool->blocks -= region->span;
		region_remove_locked(region);
		region_free_locked(region);
	}
	if (pool->destroyed) {
		trim_locked(pool, 0);
		if (pool->used == 0)
			discard_locked(pool);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (pool == NULL || properties == NULL ||
	    properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!cuda_is_device(properties->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	*pool = new_pool_locked(properties->location.id, properties->maxSize);
	cuda_unlock();
	return *pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	if (!pool_valid_locked(pool) || pool->fixed) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		struct device *device = &cuda.devices[pool->device];
		if (device->pool == pool)
			device->pool = NULL;
		pool->destroyed = true;
		trim_locked(pool, 0);
		if (pool->used == 0)
			discard_locked(pool);
	}
	cuda_unlock();
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	if (pool_valid_locked(pool))
		trim_locked(pool, keep);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}

static CUresult set_locked(CUmemoryPool pool, int attribute, const void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[attribute - 1] = *(const int *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = *(const uint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* only a reset */
		if (*(const uint64_t *)value != 0)
			return CUDA_ERROR_INVALID_VALUE;
		pool->reserved_high = pool->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(const uint64_t *)value != 0)
			return CUDA_ERROR_INVALID_VALUE;
		pool->used_high = pool->used;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_locked(CUmemoryPool pool, int attribute, void *value)
{
	const uint64_t numbers[] = {
		[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = pool->threshold,
		[CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = pool->reserved,
		[CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] = pool->reserved_high,
		[CU_MEMPOOL_ATTR_USED_MEM_CURRENT] = pool->used,
		[CU_MEMPOOL_ATTR_USED_MEM_HIGH] = pool->used_high,
	};

	if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
	    attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		*(int *)value = pool->reuse[attribute - 1];
	else
		*(uint64_t *)value = numbers[attribute];
	return CUDA_SUCCESS;
}

static CUresult attribute_call(CUmemoryPool pool, int attribute, void *value,
			       bool set)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	if (value == NULL || !pool_valid_locked(pool))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (set)
		result = set_locked(pool, attribute, value);
	else
		result = get_locked(pool, attribute, value);
	cuda_unlock();
	return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	return attribute_call(pool, attribute, value, true);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	return attribute_call(pool, attribute, value, false);
}

static CUresult device_pool(CUmemoryPool *pool, CUdevice device,
			    CUmemoryPool (*of)(CUdevice))
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (pool == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	*pool = of(device);
	cuda_unlock();
	return *pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	return device_pool(pool, device, default_pool_locked);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	return device_pool(pool, device, pool_current_locked);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	if (pool_valid_locked(pool) && pool->device == device)
		cuda.devices[device].pool = pool;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	cuda_unlock();
	return result;
}
