/*
 * Which region lies at an address: a two-level table with one entry for each
 * 2 MiB of the 47-bit address space, so that a lookup costs two loads however
 * much is allocated. Addresses come from the kernel and so meet no others;
 * device memory cannot be touched by the CPU, as on most real cards.
 */
#include "cuda_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEAF_BITS 13
#define LEAF_SIZE (1u << LEAF_BITS)
#define BLOCK_BITS 21
#define TOP_SIZE (1u << (47 - BLOCK_BITS - LEAF_BITS))

static struct region **top_table[TOP_SIZE];

/* Addresses of device memory that were just freed, most programs ask for the
 * same sizes again. Holds no memory, and spares the kernel's part of it. */
static struct {
	CUdeviceptr base;
	uint64_t span;
} spare[32];

static CUdeviceptr take_spare(uint64_t span)
{
	for (unsigned i = 0; i < sizeof(spare) / sizeof(spare[0]); i++) {
		if (spare[i].span == span) {
			spare[i].span = 0;
			return spare[i].base;
		}
	}
	return 0;
}

static CUdeviceptr map_aligned(uint64_t span, uint64_t alignment,
			       int protection)
{
	uint64_t want = span + alignment;

	if (want < span)
		return 0;
	char *at = mmap(NULL, want, protection,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return 0;
	char *base = (char *)sim_round_up((uint64_t)at, alignment);
	if (base > at)
		munmap(at, (size_t)(base - at));
	if (at + want > base + span)
		munmap(base + span, (size_t)(at + want - (base + span)));
	return (CUdeviceptr)base;
}

CUdeviceptr address_reserve_locked(uint64_t span, uint64_t alignment,
				   bool touchable)
{
	CUdeviceptr base = 0;

	if (touchable)
		return map_aligned(span, alignment, PROT_READ | PROT_WRITE);
	if (alignment == SIM_BLOCK)
		base = take_spare(span);
	return base != 0 ? base : map_aligned(span, alignment, PROT_NONE);
}

void address_release_locked(CUdeviceptr base, uint64_t span, bool touchable)
{
	for (unsigned i = 0; !touchable && i < sizeof(spare) / sizeof(spare[0]);
	     i++) {
		if (spare[i].span == 0) {
			spare[i].base = base;
			spare[i].span = span;
			return;
		}
	}
	munmap((void *)base, span);
}

static bool is_touchable(enum region_kind kind)
{
	return kind == REGION_MANAGED || kind == REGION_HOST;
}

static struct region **leaf_of(CUdeviceptr pointer, bool make)
{
	uint64_t block = pointer >> BLOCK_BITS;

	if (block >> LEAF_BITS >= TOP_SIZE)
		return NULL;
	struct region ***leaf = &top_table[block >> LEAF_BITS];
	if (*leaf == NULL && make)
		*leaf = calloc(LEAF_SIZE, sizeof(struct region *));
	return *leaf == NULL ? NULL : &(*leaf)[block & (LEAF_SIZE - 1)];
}

static bool fill(const struct region *region, struct region *value)
{
	for (uint64_t at = 0; at < region->span; at += SIM_BLOCK) {
		struct region **leaf =
			leaf_of(region->base + at, value != NULL);
		if (leaf == NULL)
			return false;
		*leaf = value;
	}
	return true;
}

struct region *region_find_locked(CUdeviceptr pointer)
{
	struct region **leaf = leaf_of(pointer, false);

	return leaf == NULL ? NULL : *leaf;
}

bool region_place_locked(struct region *region)
{
	if (!fill(region, region)) {
		fill(region, NULL);
		return false;
	}
	if (region->context != NULL && region->kind != REGION_SMALL) {
		region->next = region->context->regions;
		region->link = &region->context->regions;
		if (region->next != NULL)
			region->next->link = &region->next;
		*region->link = region;
	}
	return true;
}

void region_remove_locked(struct region *region)
{
	fill(region, NULL);
	if (region->link != NULL) {
		*region->link = region->next;
		if (region->next != NULL)
			region->next->link = region->link;
	}
	region->link = NULL;
}

struct region *region_new_locked(enum region_kind kind, uint64_t bytes,
				 CUdevice device)
{
	struct region *region = calloc(1, sizeof(*region));

	if (region == NULL)
		return NULL;
	region->kind = kind;
	region->device = device;
	region->bytes = bytes;
	region->span = sim_round_up(bytes, SIM_BLOCK);
	region->base = address_reserve_locked(region->span, SIM_BLOCK,
					      is_touchable(kind));
	if (region->base == 0) {
		free(region);
		return NULL;
	}
	return region;
}

void region_free_locked(struct region *region)
{
	address_release_locked(region->base, region->span,
			       is_touchable(region->kind));
	free(region);
}
