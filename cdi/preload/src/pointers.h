/*
 * What this process has allocated, by pointer, and how each allocation is
 * charged. A pointer that is not here was not charged, and its free is none of
 * our business.
 */
#ifndef AQ_POINTERS_H
#define AQ_POINTERS_H

#include "charge.h"

enum aq_kind {
	AQ_LARGE = 1, /* charged by itself: amount units */
	AQ_SMALL,     /* charged by its block of 2 MiB */
	AQ_POOLED,    /* charged by its pool: amount is the pool's number */
};

struct block;

struct aq_allocation {
	uint64_t pointer;
	struct aq_gpu *gpu;
	enum aq_kind kind;
	uint32_t amount;
	struct block *block; /* of a small one that was taken out */
};

/* Records a new allocation. *keep gets the units of it that must stay charged:
 * 0 for a small one whose block is charged already. What the pointer was used
 * for before, if we missed its end, is given back. False: out of memory of our
 * own, and nothing is recorded. */
bool aq_pointers_add(const struct aq_allocation *allocation, uint32_t *keep);

/* Takes a pointer out before the driver frees it, since afterwards the driver
 * may give it to another thread. Its charge stays. */
bool aq_pointers_take(uint64_t pointer, struct aq_allocation *allocation);

/* The driver did not free it. */
void aq_pointers_put_back(const struct aq_allocation *allocation);

/* The driver did: gives back what it was charged. */
void aq_pointers_retire(const struct aq_allocation *allocation);

/* Gives back whatever of the GPU is_alive denies; for the end of a context,
 * which frees what was allocated in it. */
void aq_pointers_sweep(struct aq_gpu *gpu, bool (*is_alive)(uint64_t pointer));

#endif
