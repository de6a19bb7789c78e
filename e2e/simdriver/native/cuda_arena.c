/*
 * Suballocation: small allocations share 2 MiB blocks in units of 512 bytes.
 *
 * Free ranges stand in lists by size with a bitmap of the lists that are not
 * empty, and neighbours merge when freed, so both calls take constant time
 * however much is live. A block goes back to its source with its last
 * suballocation.
 */
#include "cuda_state.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define UNITS (SIM_BLOCK / SMALL_UNIT)
#define BINS 48

enum range_state { RANGE_NONE, RANGE_FREE, RANGE_USED };

/* One for each unit; only those at the two ends of a range mean anything. */
struct range {
	struct range *next, **link; /* at the start of a free range */
	uint32_t bytes;		    /* at the start of a used one, as asked */
	uint16_t units;		    /* at a start */
	uint16_t index;		    /* of this unit, at a start */
	uint16_t back;		    /* at the end of a free range: its length */
	uint8_t state;		    /* at a start */
};

struct block {
	struct region region; /* first: a region of kind REGION_SMALL is this */
	unsigned used_units;
	struct block *next, **link; /* in the arena */
	struct range ranges[UNITS];
};

struct arena {
	const struct arena_source *source;
	void *owner;
	CUdevice device;
	CUcontext context;
	CUmemoryPool pool;
	struct block *blocks;
	uint64_t filled; /* bit i: bins[i] is not empty */
	struct range *bins[BINS];
};

/* Sizes below 8 units have a list each, then four lists for each power of 2. */
static unsigned bin_of(unsigned units)
{
	if (units < 8)
		return units;
	unsigned power = 31u - (unsigned)__builtin_clz(units);

	return 8 + (power - 3) * 4 + ((units >> (power - 2)) & 3);
}

static struct block *block_of(struct range *range)
{
	return (struct block *)((char *)(range - range->index) -
				offsetof(struct block, ranges));
}

static void add_free(struct arena *arena, struct block *block, unsigned index,
		     unsigned units)
{
	struct range *range = &block->ranges[index];
	unsigned bin = bin_of(units);

	range->state = RANGE_FREE;
	range->units = (uint16_t)units;
	range->index = (uint16_t)index;
	block->ranges[index + units - 1].back = (uint16_t)units;
	range->next = arena->bins[bin];
	range->link = &arena->bins[bin];
	if (range->next != NULL)
		range->next->link = &range->next;
	arena->bins[bin] = range;
	arena->filled |= UINT64_C(1) << bin;
}

static void drop_free(struct arena *arena, struct range *range)
{
	unsigned bin = bin_of(range->units);

	*range->link = range->next;
	if (range->next != NULL)
		range->next->link = range->link;
	if (arena->bins[bin] == NULL)
		arena->filled &= ~(UINT64_C(1) << bin);
	range->state = RANGE_NONE;
	range[range->units - 1].back = 0;
}

static struct range *find_free(struct arena *arena, unsigned units)
{
	unsigned bin = bin_of(units);
	uint64_t larger = arena->filled & ~((UINT64_C(2) << bin) - 1);

	if (arena->bins[bin] != NULL && arena->bins[bin]->units >= units)
		return arena->bins[bin];
	if (larger != 0)
		return arena->bins[__builtin_ctzll(larger)];
	/* Before a new block is taken, the rest of the list of this size. */
	struct range *range = arena->bins[bin];
	while (range != NULL && range->units < units)
		range = range->next;
	return range;
}

/* The accounts of blocks that went back; all their ranges are RANGE_NONE. */
static struct block *spare;
static unsigned spares;

static struct block *new_block(void)
{
	struct block *block = spare;

	if (block != NULL) {
		spare = block->next;
		spares--;
		return block;
	}
	block = mmap(NULL, sizeof(*block), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return block == MAP_FAILED ? NULL : block;
}

static void drop_block(struct block *block, bool clean)
{
	if (!clean || spares == 64) {
		munmap(block, sizeof(*block));
		return;
	}
	block->next = spare;
	spare = block;
	spares++;
}

static struct range *add_block(struct arena *arena)
{
	if (!arena->source->take(arena->owner))
		return NULL;
	struct block *block = new_block();
	if (block == NULL) {
		arena->source->give(arena->owner);
		return NULL;
	}
	block->region = (struct region){
		.kind = REGION_SMALL,
		.device = arena->device,
		.bytes = SIM_BLOCK,
		.span = SIM_BLOCK,
		.base = address_reserve_locked(SIM_BLOCK, SIM_BLOCK, false),
		.context = arena->context,
		.pool = arena->pool,
		.arena = arena,
	};
	if (block->region.base == 0 || !region_place_locked(&block->region)) {
		if (block->region.base != 0)
			address_release_locked(block->region.base, SIM_BLOCK,
					       false);
		drop_block(block, true);
		arena->source->give(arena->owner);
		return NULL;
	}
	block->next = arena->blocks;
	block->link = &arena->blocks;
	if (block->next != NULL)
		block->next->link = &block->next;
	arena->blocks = block;
	add_free(arena, block, 0, UNITS);
	return &block->ranges[0];
}

static void remove_block(struct arena *arena, struct block *block)
{
	*block->link = block->next;
	if (block->next != NULL)
		block->next->link = block->link;
	region_remove_locked(&block->region);
	address_release_locked(block->region.base, SIM_BLOCK, false);
	drop_block(block, block->used_units == 0);
	arena->source->give(arena->owner);
}

struct arena *arena_new(const struct arena_source *source, void *owner,
			CUdevice device, CUcontext context, CUmemoryPool pool)
{
	struct arena *arena = calloc(1, sizeof(*arena));

	if (arena == NULL)
		return NULL;
	arena->source = source;
	arena->owner = owner;
	arena->device = device;
	arena->context = context;
	arena->pool = pool;
	return arena;
}

void arena_destroy_locked(struct arena *arena)
{
	while (arena->blocks != NULL)
		remove_block(arena, arena->blocks);
	free(arena);
}

CUdeviceptr arena_alloc_locked(struct arena *arena, uint64_t bytes)
{
	unsigned units = (unsigned)((bytes + SMALL_UNIT - 1) / SMALL_UNIT);
	struct range *range = find_free(arena, units);

	if (range == NULL)
		range = add_block(arena);
	if (range == NULL)
		return 0;
	struct block *block = block_of(range);
	unsigned spare = range->units - units;
	drop_free(arena, range);
	if (spare > 0)
		add_free(arena, block, range->index + units, spare);
	range->state = RANGE_USED;
	range->units = (uint16_t)units;
	range->bytes = (uint32_t)bytes;
	block->used_units += units;
	return block->region.base + range->index * SMALL_UNIT;
}

static struct range *used_at(struct region *region, CUdeviceptr pointer)
{
	struct block *block = (struct block *)region;
	uint64_t offset = pointer - region->base;
	struct range *range = &block->ranges[offset / SMALL_UNIT];

	return offset % SMALL_UNIT == 0 && range->state == RANGE_USED ? range :
									NULL;
}

uint64_t arena_size_locked(struct region *region, CUdeviceptr pointer)
{
	struct range *range = used_at(region, pointer);

	return range == NULL ? 0 : range->bytes;
}

uint64_t arena_range_locked(struct region *region, CUdeviceptr pointer,
			    CUdeviceptr *base)
{
	uint64_t unit = (pointer - region->base) / SMALL_UNIT;
	struct range *ranges = ((struct block *)region)->ranges;

	while (unit > 0 && ranges[unit].state == RANGE_NONE)
		unit--;
	*base = region->base + unit * SMALL_UNIT;
	if (ranges[unit].state != RANGE_USED ||
	    pointer - *base >= ranges[unit].bytes)
		return 0;
	return ranges[unit].bytes;
}

void arena_free_locked(struct region *region, CUdeviceptr pointer)
{
	struct block *block = (struct block *)region;
	struct arena *arena = region->arena;
	struct range *range = used_at(region, pointer);
	unsigned start = range->index, units = range->units;

	block->used_units -= units;
	range->state = RANGE_NONE;
	if (start + units < UNITS &&
	    block->ranges[start + units].state == RANGE_FREE) {
		struct range *after = &block->ranges[start + units];
		units += after->units;
		drop_free(arena, after);
	}
	if (start > 0 && block->ranges[start - 1].back != 0) {
		unsigned back = block->ranges[start - 1].back;
		start -= back;
		units += back;
		drop_free(arena, &block->ranges[start]);
	}
	if (block->used_units == 0)
		remove_block(arena, block);
	else
		add_free(arena, block, start, units);
}
