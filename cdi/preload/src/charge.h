/*
 * Charging the shares of a GPU, so that no two processes ever hold more than
 * the limit between them.
 *
 * Publish, then check: a process adds what it wants to its own slot and then
 * adds up all slots. Of any two grants, the one that published last saw the
 * other, so the sum of what is granted never exceeds the limit; nobody keeps a
 * total that could drift. What does not fit is taken back, and the slow path
 * finds out, one process at a time, whether it really does not.
 */
#ifndef AQ_CHARGE_H
#define AQ_CHARGE_H

#include "share.h"
#include "word.h"

/* The hardware gives out blocks of 2 MiB. */
#define AQ_BLOCK_SHIFT 21u
#define AQ_BLOCK_UNITS (1u << (AQ_BLOCK_SHIFT - AQ_UNIT_SHIFT))
#define AQ_UNITS_MAX UINT32_MAX /* more than any limit */

/* Whole blocks, in units. */
static inline uint32_t aq_units(uint64_t bytes)
{
	uint64_t block = UINT64_C(1) << AQ_BLOCK_SHIFT;
	uint64_t blocks = bytes / block + (bytes % block != 0);

	return blocks > AQ_FIELD_MAX ? AQ_UNITS_MAX
				     : (uint32_t)blocks * AQ_BLOCK_UNITS;
}

/* What was reserved, of which share, and waits for the driver's answer. */
struct aq_hold {
	struct aq_gpu *gpu;
	uint32_t units;
	uint32_t parts[AQ_SHARES_MAX]; /* the first share_count are set */
};

/* Reserves units of a GPU. False: they are not to be had. */
bool aq_reserve(struct aq_hold *hold, struct aq_gpu *gpu, uint32_t units);

/* Reserves more under the same hold. It does not wait for what others have
 * pending, since they may be waiting for what the hold has. */
bool aq_reserve_more(struct aq_hold *hold, uint32_t units);

/* The driver has answered: keeps so many units and gives back the rest. */
void aq_commit(struct aq_hold *hold, uint32_t keep);

/* Charges what is held already and cannot be given back, whether or not it fits:
 * where it does not, nothing more is granted until it does. */
void aq_charge(struct aq_gpu *gpu, uint32_t units);

/* Gives back units that were kept. */
void aq_release(struct aq_gpu *gpu, uint32_t units);

/* Units that all processes hold of the GPU's shares. */
uint64_t aq_used(const struct aq_gpu *gpu);

/* Takes this process's slots, by which the node knows it. False: there are none
 * left. */
bool aq_take_slots(struct aq_gpu *gpu);

/* Bytes of what this process holds that its memory pools reserve, and that its
 * contexts cost: for people and the node's agent. */
void aq_note_pools(struct aq_gpu *gpu, uint64_t bytes);
void aq_note_contexts(struct aq_gpu *gpu, uint64_t bytes);

/* In a forked child. */
void aq_charge_forked(struct aq_share *share);

#endif
