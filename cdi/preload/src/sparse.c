/*
 * Memory mapped into arrays that have none of their own. A tile of such an array
 * holds the memory that is mapped there like any mapping does (vmm.c).
 *
 * The call takes effect when its stream gets there; we count it when it is
 * accepted.
 */
#include <string.h>

#include "fork.h"
#include "functions.h"
#include "table.h"
#include "vmm.h"

/* A tile, by a hash of the array and the place in it, to the object there and
 * the rest of a hash of the array: when an array goes, so do its tiles. */
static struct aq_table tiles;

static uint64_t mix(uint64_t hash, uint64_t word)
{
	return aq_hash(hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
}

static uint64_t array_mark(const void *array)
{
	return mix(1, (uint64_t)(uintptr_t)array) >> AQ_OBJECT_BITS
						   << AQ_OBJECT_BITS;
}

/* Of a tail of small levels the size may be left out when it is unmapped. */
static uint64_t tile_key(const CUarrayMapInfo *info)
{
	uint64_t hash = mix(2, (uint64_t)(uintptr_t)info->resource);
	unsigned words = info->subresourceType == CU_ARRAY_SPARSE_MIPTAIL
		? 2
		: sizeof(info->subresource) / sizeof(uint64_t);
	uint64_t at[sizeof(info->subresource) / sizeof(uint64_t)];

	memcpy(at, info->subresource, sizeof(at));
	if (info->subresourceType == CU_ARRAY_SPARSE_MIPTAIL)
		at[0] &= UINT32_MAX; /* the layer; then padding */
	hash = mix(hash, (unsigned)info->subresourceType);
	for (unsigned i = 0; i < words; i++)
		hash = mix(hash, at[i]);
	return hash ? hash : 1;
}

static void tile_remove(struct aq_entry *tile)
{
	uint32_t object = (uint32_t)tile->value &
			  ((1u << AQ_OBJECT_BITS) - 1);

	aq_table_remove(&tiles, tile);
	aq_vmm_leave(object);
}

/* Mapped or not, what was there before is not any more. */
static void note(const CUarrayMapInfo *info)
{
	uint64_t key = tile_key(info);
	struct aq_entry *tile = aq_table_find(&tiles, key);
	uint32_t object = AQ_NO_OBJECT;

	if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP)
		object = aq_vmm_object(info->memHandle);
	aq_vmm_hold(object);
	if (tile)
		tile_remove(tile);
	if (object != AQ_NO_OBJECT)
		aq_table_put(&tiles, key, array_mark(info->resource) | object);
}

void aq_sparse_destroyed(const void *array)
{
	uint64_t mark = array_mark(array);

	for (uint32_t i = 0; i < tiles.capacity; i++) {
		struct aq_entry *tile = &tiles.entries[i];

		if (!tile->key || tile->value >> AQ_OBJECT_BITS
					  << AQ_OBJECT_BITS != mark)
			continue;
		tile_remove(tile);
		i--; /* another may have moved here */
	}
}

#define MAP_ARRAY_ASYNC(name)                                               \
	CUresult name(CUarrayMapInfo *infos, unsigned count, CUstream stream) \
	{                                                                   \
		CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                 \
									    \
		AQ_ENTER(name);                                             \
		aq_vmm_lock();                                              \
		if (aq_table_make_room(&tiles, count))                      \
			result = aq_real.name(infos, count, stream);        \
		for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) \
			note(&infos[i]);                                    \
		aq_vmm_unlock();                                            \
		return result;                                              \
	}

MAP_ARRAY_ASYNC(cuMemMapArrayAsync)
MAP_ARRAY_ASYNC(cuMemMapArrayAsync_ptsz)

void aq_sparse_forked(void)
{
	aq_table_clear(&tiles);
}
