/*
 * Two kinds of table, in shards that are locked one at a time.
 *
 * Small allocations are many, so each is one bit: a block of 2 MiB that has any
 * has a map of the places where one begins, and all of it stays in the
 * processor's cache. Everything else is an entry of a hash table by pointer.
 * A pointer and its block are in the same shard.
 */
#include <sys/mman.h>

#include "fork.h"
#include "pointers.h"
#include "pool.h"
#include "table.h"

#define SHARDS 64u
#define PLACE_SHIFT 8u /* drivers align to 256 bytes at least */
#define PLACES (1u << (AQ_BLOCK_SHIFT - PLACE_SHIFT))

struct block {
	struct aq_gpu *gpu;
	struct block *next_unused;
	uint64_t key; /* in its shard's table */
	uint32_t count; /* charged while it is not 0; at least the bits set */
	uint64_t begins[PLACES / 64];
};

/* Where blocks come from. */
struct chunk {
	struct chunk *next;
	struct block blocks[60];
};

/* Aligned so that none lies across two pages. */
struct shard {
	struct aq_lock lock;
	struct aq_table pointers; /* to amount, GPU and kind */
	struct aq_table blocks;	  /* number to struct block */
	struct block *idle; /* became so last, and may still be */
	struct block *unused;
	struct chunk *chunks;
} __attribute__((aligned(256)));

static struct shard shards[SHARDS];

static struct shard *shard_of(uint64_t pointer)
{
	return &shards[aq_hash(pointer >> AQ_BLOCK_SHIFT) % SHARDS];
}

/* Never 0, also for a driver that gives addresses in the first block. */
static uint64_t block_key(uint64_t pointer)
{
	return (pointer >> AQ_BLOCK_SHIFT) + 1;
}

static struct block *block_find(struct shard *shard, uint64_t pointer)
{
	struct aq_entry *entry = aq_table_find(&shard->blocks,
					       block_key(pointer));

	return entry ? (struct block *)(uintptr_t)entry->value : NULL;
}

static bool more_blocks(struct shard *shard)
{
	AQ_KEEP_ERRNO;
	struct chunk *chunk = mmap(NULL, sizeof(*chunk), PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (chunk == MAP_FAILED)
		return false;
	chunk->next = shard->chunks;
	shard->chunks = chunk;
	for (unsigned i = 0; i < sizeof(chunk->blocks) / sizeof(struct block);
	     i++) {
		chunk->blocks[i].next_unused = shard->unused;
		shard->unused = &chunk->blocks[i];
	}
	return true;
}

/* One that was used before has neither a count nor a bit left: only so was it
 * removed. */
static struct block *block_add(struct shard *shard, uint64_t pointer)
{
	struct block *block;

	if (!aq_table_make_room(&shard->blocks, 1) ||
	    (!shard->unused && !more_blocks(shard)))
		return NULL;
	block = shard->unused;
	shard->unused = block->next_unused;
	block->key = block_key(pointer);
	aq_table_put(&shard->blocks, block->key, (uint64_t)(uintptr_t)block);
	return block;
}

static void block_remove(struct shard *shard, struct block *block)
{
	aq_table_remove(&shard->blocks,
			aq_table_find(&shard->blocks, block->key));
	block->next_unused = shard->unused;
	shard->unused = block;
	if (shard->idle == block)
		shard->idle = NULL;
}

/* Nothing is left in it. One such block a shard stays: a program that makes and
 * frees one buffer after the other gets the same one back. */
static void block_rest(struct shard *shard, struct block *block)
{
	struct block *idle = shard->idle;

	if (idle == block)
		return;
	if (idle && idle->count == 0)
		block_remove(shard, idle);
	shard->idle = block;
}

static uint64_t *begins_word(struct block *block, uint64_t pointer)
{
	return &block->begins[(pointer >> PLACE_SHIFT) % PLACES / 64];
}

static uint64_t begins_bit(uint64_t pointer)
{
	return UINT64_C(1) << (pointer >> PLACE_SHIFT) % 64;
}

/* The value of a pointer that has an entry: amount, GPU, kind. */
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

/* What a pointer was recorded as before, if anything, comes out; its charge is
 * the caller's to give back. block: where the pointer lies, or NULL. */
AQ_HOT static bool take_locked(struct shard *shard, struct block *block,
			       uint64_t pointer, struct aq_allocation *a)
{
	struct aq_entry *entry;

	if (block && *begins_word(block, pointer) & begins_bit(pointer)) {
		*begins_word(block, pointer) &= ~begins_bit(pointer);
		*a = (struct aq_allocation){ pointer, block->gpu, AQ_SMALL,
					     AQ_BLOCK_UNITS, block };
		return true;
	}
	entry = aq_table_find(&shard->pointers, pointer);
	if (!entry)
		return false;
	*a = unpack(entry);
	aq_table_remove(&shard->pointers, entry);
	return true;
}

/* *keep: what the allocation itself adds to the charge. False: no memory of our
 * own, or the block was last seen on another GPU, and its end was missed. */
static bool add_small_locked(struct shard *shard, struct block *block,
			     const struct aq_allocation *a, uint32_t *keep)
{
	if (AQ_UNLIKELY(!block) && !(block = block_add(shard, a->pointer)))
		return false;
	if (block->count == 0)
		block->gpu = a->gpu;
	else if (AQ_UNLIKELY(block->gpu != a->gpu))
		return false;
	*keep = block->count++ == 0 ? AQ_BLOCK_UNITS : 0;
	*begins_word(block, a->pointer) |= begins_bit(a->pointer);
	return true;
}

static bool add_entry_locked(struct shard *shard,
			     const struct aq_allocation *a)
{
	if (!aq_table_make_room(&shard->pointers, 1))
		return false;
	aq_table_put(&shard->pointers, a->pointer, pack(a));
	return true;
}

static bool is_mapped(const struct aq_allocation *a)
{
	return a->kind == AQ_SMALL && a->pointer % (1u << PLACE_SHIFT) == 0;
}

AQ_HOT bool aq_pointers_add(const struct aq_allocation *added, uint32_t *keep)
{
	struct shard *shard = shard_of(added->pointer);
	struct aq_allocation a = *added, stale;
	struct block *block;
	bool was, done;

	aq_lock(&shard->lock);
	block = block_find(shard, a.pointer);
	was = take_locked(shard, block, a.pointer, &stale);
	done = is_mapped(&a) && add_small_locked(shard, block, &a, keep);
	if (AQ_UNLIKELY(!done)) {
		/* A small one without a place in a map is charged by itself. */
		if (a.kind == AQ_SMALL)
			a.kind = AQ_LARGE;
		*keep = a.amount;
		done = add_entry_locked(shard, &a);
	}
	aq_unlock(&shard->lock);
	if (AQ_UNLIKELY(was))
		aq_pointers_retire(&stale);
	return done;
}

AQ_HOT bool aq_pointers_take(uint64_t pointer, struct aq_allocation *a)
{
	struct shard *shard = shard_of(pointer);
	bool found;

	aq_lock(&shard->lock);
	found = take_locked(shard, block_find(shard, pointer), pointer, a);
	aq_unlock(&shard->lock);
	return found;
}

/* Room for an entry was there before; if it is not, the charge stays for good. */
void aq_pointers_put_back(const struct aq_allocation *a)
{
	struct shard *shard = shard_of(a->pointer);

	aq_lock(&shard->lock);
	if (a->block)
		*begins_word(a->block, a->pointer) |= begins_bit(a->pointer);
	else
		add_entry_locked(shard, a);
	aq_unlock(&shard->lock);
}

/* Counts a small one out of its block, which is there as long as anything is
 * counted in it, and says what that gives back. */
static uint32_t leave_block(const struct aq_allocation *a)
{
	struct shard *shard = shard_of(a->pointer);
	uint32_t units = 0;

	aq_lock(&shard->lock);
	if (--a->block->count == 0) {
		block_rest(shard, a->block);
		units = AQ_BLOCK_UNITS;
	}
	aq_unlock(&shard->lock);
	return units;
}

AQ_HOT void aq_pointers_retire(const struct aq_allocation *a)
{
	uint32_t units = 0;

	switch (a->kind) {
	case AQ_LARGE:
		units = a->amount;
		break;
	case AQ_SMALL:
		units = leave_block(a);
		break;
	case AQ_POOLED:
		aq_pool_freed(a->amount);
		break;
	}
	if (units)
		aq_release(a->gpu, units);
}

typedef bool is_alive_function(uint64_t pointer);

/* Takes what is dead out of a block. */
static void sweep_block(struct block *block, uint64_t first,
			is_alive_function *is_alive)
{
	for (unsigned word = 0; word < PLACES / 64; word++) {
		uint64_t bits = block->begins[word];

		for (; bits; bits &= bits - 1) {
			unsigned place = word * 64 +
					 (unsigned)__builtin_ctzll(bits);
			uint64_t pointer = first + ((uint64_t)place
						    << PLACE_SHIFT);

			if (is_alive(pointer))
				continue;
			block->begins[word] &= ~begins_bit(pointer);
			block->count--;
		}
	}
}

/* Removing an entry moves another one to its place, which is then looked at. */
static void sweep_blocks(struct shard *shard, struct aq_gpu *gpu,
			 is_alive_function *is_alive)
{
	for (uint32_t i = 0; i < shard->blocks.capacity; i++) {
		struct aq_entry *entry = &shard->blocks.entries[i];
		struct block *block = (struct block *)(uintptr_t)entry->value;
		uint64_t first = (entry->key - 1) << AQ_BLOCK_SHIFT;

		if (!entry->key || block->gpu != gpu || block->count == 0)
			continue;
		sweep_block(block, first, is_alive);
		if (block->count == 0) {
			block_remove(shard, block);
			aq_release(gpu, AQ_BLOCK_UNITS);
			i--;
		}
	}
}

static void sweep_entries(struct shard *shard, struct aq_gpu *gpu,
			  is_alive_function *is_alive)
{
	for (uint32_t i = 0; i < shard->pointers.capacity; i++) {
		struct aq_entry *entry = &shard->pointers.entries[i];
		struct aq_allocation a = unpack(entry);

		if (!entry->key || a.gpu != gpu || is_alive(a.pointer))
			continue;
		aq_table_remove(&shard->pointers, entry);
		aq_pointers_retire(&a); /* no small one: takes no shard */
		i--;
	}
}

void aq_pointers_sweep(struct aq_gpu *gpu, is_alive_function *is_alive)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		aq_lock(&shards[i].lock);
		sweep_blocks(&shards[i], gpu, is_alive);
		sweep_entries(&shards[i], gpu, is_alive);
		aq_unlock(&shards[i].lock);
	}
}

void aq_pointers_forked(void)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		struct shard *shard = &shards[i];

		aq_lock_reset(&shard->lock);
		aq_table_clear(&shard->pointers);
		aq_table_clear(&shard->blocks);
		shard->idle = NULL;
		shard->unused = NULL;
		while (shard->chunks) {
			struct chunk *chunk = shard->chunks;

			shard->chunks = chunk->next;
			munmap(chunk, sizeof(*chunk));
		}
	}
}
