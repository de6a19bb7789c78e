/*
 * One table for both pointers and blocks, in shards that are locked one at a
 * time. A pointer and its block are in the same shard, so that a small
 * allocation takes one lock. Keys: a pointer as it is (the driver aligns to
 * more than a byte); a block as its first address plus 1.
 */
#include "fork.h"
#include "pointers.h"
#include "pool.h"
#include "table.h"

#define SHARDS 64u

struct shard {
	struct aq_lock lock;
	struct aq_table table;
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];

static struct shard *shard_of(uint64_t pointer)
{
	return &shards[aq_hash(pointer >> AQ_BLOCK_SHIFT) % SHARDS];
}

static uint64_t block_key(uint64_t pointer)
{
	return (pointer >> AQ_BLOCK_SHIFT << AQ_BLOCK_SHIFT) + 1;
}

/* The value of a pointer: amount, GPU, kind. Of a block: a count of pointers. */
static uint64_t pack(const struct aq_allocation *a)
{
	return (uint64_t)a->amount | (uint64_t)a->gpu->index << 32 |
	       (uint64_t)a->kind << 40;
}

static struct aq_allocation unpack(const struct aq_entry *entry)
{
	return (struct aq_allocation){
		.pointer = entry->key,
		.amount = (uint32_t)entry->value,
		.gpu = &aq_gpus[entry->value >> 32 & 0xff],
		.kind = (enum aq_kind)(entry->value >> 40),
	};
}

/* Counts a small allocation into its block, and says what that costs. */
static uint32_t block_enter(struct shard *shard, uint64_t pointer)
{
	struct aq_entry *block = aq_table_find(&shard->table,
					       block_key(pointer));

	if (block) {
		block->value++;
		return 0;
	}
	aq_table_put(&shard->table, block_key(pointer), 1);
	return AQ_BLOCK_UNITS;
}

/* Counts it out, and says what that gives back. */
static uint32_t block_leave(struct shard *shard, uint64_t pointer)
{
	struct aq_entry *block = aq_table_find(&shard->table,
					       block_key(pointer));

	if (!block || --block->value > 0)
		return 0;
	aq_table_remove(&shard->table, block);
	return AQ_BLOCK_UNITS;
}

/* Takes the entry out of the table; its charge is the caller's to give back. */
static struct aq_allocation remove_entry(struct shard *shard,
					 struct aq_entry *entry)
{
	struct aq_allocation a = unpack(entry);

	aq_table_remove(&shard->table, entry);
	return a;
}

bool aq_pointers_add(const struct aq_allocation *a, uint32_t *keep)
{
	struct shard *shard = shard_of(a->pointer);
	struct aq_allocation stale = { .kind = 0 };
	struct aq_entry *entry;

	aq_lock(&shard->lock);
	if (!aq_table_make_room(&shard->table, 2)) {
		aq_unlock(&shard->lock);
		return false;
	}
	entry = aq_table_find(&shard->table, a->pointer);
	if (AQ_UNLIKELY(entry))
		stale = remove_entry(shard, entry);
	aq_table_put(&shard->table, a->pointer, pack(a));
	*keep = a->kind == AQ_SMALL ? block_enter(shard, a->pointer)
				    : a->amount;
	aq_unlock(&shard->lock);
	if (AQ_UNLIKELY(stale.kind))
		aq_pointers_retire(&stale);
	return true;
}

bool aq_pointers_take(uint64_t pointer, struct aq_allocation *a)
{
	struct shard *shard = shard_of(pointer);
	struct aq_entry *entry;

	aq_lock(&shard->lock);
	entry = aq_table_find(&shard->table, pointer);
	if (entry)
		*a = remove_entry(shard, entry);
	aq_unlock(&shard->lock);
	return entry != NULL;
}

/* There is room: an entry was just taken out, or the charge stays for good. */
void aq_pointers_put_back(const struct aq_allocation *a)
{
	struct shard *shard = shard_of(a->pointer);

	aq_lock(&shard->lock);
	if (aq_table_make_room(&shard->table, 1))
		aq_table_put(&shard->table, a->pointer, pack(a));
	aq_unlock(&shard->lock);
}

void aq_pointers_retire(const struct aq_allocation *a)
{
	struct shard *shard = shard_of(a->pointer);
	uint32_t units = 0;

	switch (a->kind) {
	case AQ_LARGE:
		units = a->amount;
		break;
	case AQ_SMALL:
		aq_lock(&shard->lock);
		units = block_leave(shard, a->pointer);
		aq_unlock(&shard->lock);
		break;
	case AQ_POOLED:
		aq_pool_freed(a->amount);
		break;
	}
	if (units)
		aq_release(a->gpu, units);
}

/* The next dead pointer of the shard at or after *at. */
static bool take_dead(struct shard *shard, uint32_t *at,
		      const struct aq_gpu *gpu, bool (*is_alive)(uint64_t),
		      struct aq_allocation *dead)
{
	for (; *at < shard->table.capacity; ++*at) {
		struct aq_entry *entry = &shard->table.entries[*at];

		if (!entry->key || entry->key & 1)
			continue;
		*dead = unpack(entry);
		if (dead->gpu == gpu && !is_alive(dead->pointer)) {
			aq_table_remove(&shard->table, entry);
			return true; /* another may have moved to *at */
		}
	}
	return false;
}

void aq_pointers_sweep(const struct aq_gpu *gpu, bool (*is_alive)(uint64_t))
{
	for (unsigned i = 0; i < SHARDS; i++) {
		struct aq_allocation dead;
		uint32_t at = 0;
		bool found;

		do {
			aq_lock(&shards[i].lock);
			found = take_dead(&shards[i], &at, gpu, is_alive,
					  &dead);
			aq_unlock(&shards[i].lock);
			if (found)
				aq_pointers_retire(&dead);
		} while (found);
	}
}

void aq_pointers_forked(void)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		aq_lock_reset(&shards[i].lock);
		aq_table_clear(&shards[i].table);
	}
}
