/*
 * Small arrays, of at most half a block, are charged together: each is taken to
 * fill a power of two of pages, the blocks that all of them would fill are
 * charged, and that falls only when the last of them goes. So holes that the
 * driver cannot use again stay charged.
 */
#include "arrays.h"
#include "fork.h"
#include "table.h"

#define PAGE_SHIFT 16u /* what drivers align arrays to */
#define SMALL_MAX (UINT64_C(1) << 20)
#define BLOCK_PAGES (1u << (AQ_BLOCK_SHIFT - PAGE_SHIFT))

struct small {
	uint64_t pages;
	uint32_t count;	  /* arrays */
	uint32_t charged; /* units */
};

static struct aq_lock arrays_lock;
static struct small smalls[AQ_SHARES_MAX + 1]; /* by the GPU's index */
static struct aq_table arrays; /* handle to amount, GPU, whether small */
static struct aq_table owners; /* handle to context */

#define GPU_SHIFT 32
#define SMALL (UINT64_C(1) << 40)

static struct aq_gpu *gpu_of(uint64_t value)
{
	return &aq_gpus[value >> GPU_SHIFT & 0xff];
}

static uint32_t small_pages(uint64_t bytes)
{
	uint32_t pages = 1;

	while ((uint64_t)pages << PAGE_SHIFT < bytes)
		pages *= 2;
	return pages;
}

uint32_t aq_array_units(uint64_t bytes)
{
	return bytes <= SMALL_MAX ? AQ_BLOCK_UNITS : aq_units(bytes);
}

/* Counts a small array; what that adds to the charge, a block at most. */
static uint32_t small_add(struct small *small, uint32_t pages)
{
	uint64_t blocks;
	uint32_t units, more = 0;

	small->count++;
	small->pages += pages;
	blocks = (small->pages + BLOCK_PAGES - 1) / BLOCK_PAGES;
	units = (uint32_t)blocks * AQ_BLOCK_UNITS;
	if (units > small->charged) {
		more = units - small->charged;
		small->charged = units;
	}
	return more;
}

/* Counts it out; what that gives back. */
static uint32_t small_remove(struct small *small, uint32_t pages)
{
	uint32_t units = 0;

	small->pages -= pages;
	if (--small->count == 0) {
		units = small->charged;
		small->charged = 0;
	}
	return units;
}

static void put(uint64_t handle, uint64_t value, CUcontext context)
{
	aq_table_put(&arrays, handle, value);
	aq_table_put(&owners, handle, (uint64_t)(uintptr_t)context);
}

static bool take(uint64_t handle, struct aq_array *array)
{
	struct aq_entry *entry = handle ? aq_table_find(&arrays, handle) : NULL;
	struct aq_entry *owner;

	if (!entry)
		return false;
	owner = aq_table_find(&owners, handle);
	*array = (struct aq_array){ handle, entry->value,
				    (CUcontext)(uintptr_t)owner->value };
	aq_table_remove(&arrays, entry);
	aq_table_remove(&owners, owner);
	return true;
}

static void retire(uint64_t value)
{
	struct aq_gpu *gpu = gpu_of(value);
	uint32_t units = (uint32_t)value;

	if (value & SMALL)
		units = small_remove(&smalls[gpu->index], units);
	if (units)
		aq_release(gpu, units);
}

bool aq_arrays_add(struct aq_hold *hold, const void *handle,
		   CUcontext context, uint64_t bytes)
{
	bool is_small = bytes <= SMALL_MAX, room;
	uint32_t amount = is_small ? small_pages(bytes) : aq_units(bytes);
	uint64_t key = (uint64_t)(uintptr_t)handle;
	struct aq_array stale;

	aq_lock(&arrays_lock);
	if (take(key, &stale)) /* we missed its end */
		retire(stale.value);
	room = aq_table_make_room(&arrays, 1) &&
	       aq_table_make_room(&owners, 1);
	if (room) {
		put(key,
		    amount | (uint64_t)hold->gpu->index << GPU_SHIFT |
			    (is_small ? SMALL : 0),
		    context);
		if (is_small)
			amount = small_add(&smalls[hold->gpu->index], amount);
		aq_commit(hold, amount);
	}
	aq_unlock(&arrays_lock);
	return room;
}

bool aq_arrays_take(const void *handle, struct aq_array *array)
{
	bool found;

	aq_lock(&arrays_lock);
	found = take((uint64_t)(uintptr_t)handle, array);
	aq_unlock(&arrays_lock);
	return found;
}

/* Room was there before; if it is not, the charge stays for good. */
void aq_arrays_put_back(const struct aq_array *array)
{
	aq_lock(&arrays_lock);
	if (aq_table_make_room(&arrays, 1) && aq_table_make_room(&owners, 1))
		put(array->handle, array->value, array->context);
	aq_unlock(&arrays_lock);
}

void aq_arrays_retire(const struct aq_array *array)
{
	aq_lock(&arrays_lock);
	retire(array->value);
	aq_unlock(&arrays_lock);
}

/* Removing an entry moves another one to its place, which is then looked at. */
void aq_arrays_sweep(CUcontext context)
{
	struct aq_array array;

	aq_lock(&arrays_lock);
	for (uint32_t i = 0; i < owners.capacity; i++) {
		struct aq_entry *owner = &owners.entries[i];

		if (!owner->key || owner->value != (uintptr_t)context)
			continue;
		take(owner->key, &array);
		retire(array.value);
		i--;
	}
	aq_unlock(&arrays_lock);
}

void aq_arrays_forked(void)
{
	aq_lock_reset(&arrays_lock);
	aq_table_clear(&arrays);
	aq_table_clear(&owners);
	for (unsigned i = 0; i < AQ_SHARES_MAX + 1; i++)
		smalls[i] = (struct small){ 0 };
}
