/* A share's region: slots, the locks that say who is alive, and their loss. */
#ifndef AQ_REGION_H
#define AQ_REGION_H

#include "share.h"
#include "word.h"

#define AQ_NO_SLOT 1023u

/* The place of a share: epoch:20 | generation:20 | slot:10. The epoch is the
 * generation of the mirror. */
static inline uint64_t aq_place(uint64_t epoch, uint64_t generation,
				uint64_t slot)
{
	return epoch << 30 | generation << 10 | slot;
}

static inline uint64_t aq_place_epoch(uint64_t place)
{
	return place >> 30;
}

static inline uint64_t aq_place_generation(uint64_t place)
{
	return place >> 10 & AQ_GENERATION_MAX;
}

static inline unsigned aq_place_slot(uint64_t place)
{
	return place & 1023;
}

static inline struct aq_usage_slot *aq_region_slot(const struct aq_share *share,
						   unsigned slot)
{
	return &share->region->slots[slot];
}

/* The slot that this process has, or NULL. */
static inline struct aq_usage_slot *
aq_region_own_slot(const struct aq_share *share)
{
	unsigned slot = aq_place_slot(__atomic_load_n(&share->place,
						      __ATOMIC_SEQ_CST));

	return slot == AQ_NO_SLOT ? NULL : aq_region_slot(share, slot);
}

static inline unsigned aq_region_hi(const struct aq_share *share)
{
	unsigned hi = __atomic_load_n(&share->region->header.hi,
				      __ATOMIC_SEQ_CST);

	return hi < AQ_SLOT_COUNT ? hi : AQ_SLOT_COUNT;
}

static inline uint64_t aq_region_word(const struct aq_share *share,
				      unsigned slot)
{
	return __atomic_load_n(&share->region->slots[slot].charge,
			       __ATOMIC_SEQ_CST);
}

/* Takes another slot, when place is still the share's place, and carries what
 * the mirror holds into it. False when no slot can be had. */
bool aq_region_move(struct aq_share *share, uint64_t place);

/* Waits until a move that another thread is making is over. */
void aq_region_settle(struct aq_share *share);

/* Frees the slots of the dead that still hold a charge. */
void aq_region_reap(struct aq_share *share);

/* Whether the owner of a slot lives. */
bool aq_region_alive(const struct aq_share *share, unsigned slot);

/* This process's pid namespace, as slots have it; 0: not to be had. */
uint64_t aq_region_pidns(void);

/* The region's mutex, by which those who find memory short take turns. It is
 * a courtesy: after a second without it we go on, and stay correct. */
bool aq_region_lock(struct aq_share *share);
void aq_region_unlock(struct aq_share *share);

#endif
