#include "charge.h"
#include "region.h"

/* How long the slow path waits for what other threads and processes have
 * pending. A driver call takes microseconds; one that hangs, or a process that
 * was stopped, must not hang us. */
#define PATIENCE AQ_NS_PER_S
#define NAP 20000
#define GATE_NS UINT64_C(10000000)

/* Changes the mirror and then the slot. False, and nothing changed: used would
 * pass the limit. */
AQ_HOT static bool change_within(struct aq_share *share, int64_t used,
				 int64_t pending, uint64_t limit)
{
	for (;;) {
		uint64_t place = __atomic_load_n(&share->place,
						 __ATOMIC_SEQ_CST);
		unsigned slot = aq_place_slot(place);

		switch (aq_word_change(&share->mirror, aq_place_epoch(place),
				       used, pending, limit)) {
		case AQ_OVER:
			return false;
		case AQ_STALE:
			aq_region_settle(share);
			continue;
		case AQ_CHANGED:
			break;
		}
		if (slot != AQ_NO_SLOT &&
		    aq_word_change(&aq_region_slot(share, slot)->charge,
				   aq_place_generation(place), used, pending,
				   AQ_FIELD_MAX) != AQ_CHANGED)
			/* Lost. The mirror carries this change along. */
			aq_region_move(share, place);
		return true;
	}
}

static bool change(struct aq_share *share, int64_t used, int64_t pending)
{
	return change_within(share, used, pending, share->limit);
}

static bool ensure_slot(struct aq_share *share)
{
	uint64_t place = __atomic_load_n(&share->place, __ATOMIC_SEQ_CST);

	if (AQ_LIKELY(aq_place_slot(place) != AQ_NO_SLOT))
		return true;
	aq_region_move(share, place);
	return aq_region_own_slot(share) != NULL;
}

static uint64_t share_used(const struct aq_share *share)
{
	unsigned hi = aq_region_hi(share);
	uint64_t used = 0;

	for (unsigned i = 0; i < hi; i++)
		used += aq_word_used(aq_region_word(share, i));
	return used;
}

uint64_t aq_used(const struct aq_gpu *gpu)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < gpu->share_count; i++)
		used += share_used(aq_gpu_share(gpu, i));
	return used;
}

/* Publishes n units and checks the sum. */
AQ_HOT static bool reserve_share(struct aq_share *share, uint32_t n)
{
	if (!ensure_slot(share) || !change(share, n, n))
		return false;
	if (AQ_LIKELY(share_used(share) <= share->limit && aq_region_own_slot(share)))
		return true;
	change(share, -(int64_t)n, -(int64_t)n);
	return false;
}

static void give_back(struct aq_hold *hold, unsigned shares)
{
	for (unsigned i = 0; i < shares; i++)
		if (hold->parts[i])
			change(aq_gpu_share(hold->gpu, i),
			       -(int64_t)hold->parts[i],
			       -(int64_t)hold->parts[i]);
}

/* Of several shares, each gives what it has room for; what aq_charge put on one
 * of them beyond its limit is missing in all. */
static bool reserve_split(struct aq_hold *hold)
{
	struct aq_gpu *gpu = hold->gpu;
	uint32_t missing = hold->units;

	for (unsigned i = 0; i < gpu->share_count; i++) {
		struct aq_share *share = aq_gpu_share(gpu, i);
		uint64_t used = missing ? share_used(share) : share->limit;
		uint64_t room = used < share->limit ? share->limit - used : 0;
		uint32_t part = room < missing ? (uint32_t)room : missing;

		hold->parts[i] = 0;
		if (part && reserve_share(share, part)) {
			hold->parts[i] = part;
			missing -= part;
		}
	}
	if (!missing && aq_used(gpu) <= gpu->limit)
		return true;
	give_back(hold, gpu->share_count);
	return false;
}

static bool reserve_once(struct aq_hold *hold)
{
	struct aq_gpu *gpu = hold->gpu;

	if (AQ_UNLIKELY(gpu->share_count != 1))
		return reserve_split(hold);
	hold->parts[0] = hold->units;
	return reserve_share(aq_gpu_share(gpu, 0), hold->units);
}

/* Room once everything pending has been given back. */
static uint64_t settled_room(const struct aq_gpu *gpu)
{
	uint64_t held = 0;

	for (unsigned i = 0; i < gpu->share_count; i++) {
		struct aq_share *share = aq_gpu_share(gpu, i);
		unsigned hi = aq_region_hi(share);

		for (unsigned j = 0; j < hi; j++)
			held += aq_word_settled(aq_region_word(share, j));
	}
	return held < gpu->limit ? gpu->limit - held : 0;
}

/*
 * The gate. While somebody waits for pending charges to settle, newcomers queue
 * behind him instead of taking what he waits for. It is a time, so it opens by
 * itself when the waiter is killed; clocks of different time namespaces may
 * disagree, so a time too far ahead is no gate.
 */
static void gate_set(struct aq_gpu *gpu, uint64_t until)
{
	for (unsigned i = 0; i < gpu->share_count; i++)
		__atomic_store_n(
			&aq_gpu_share(gpu, i)->region->header.gate_until, until,
			__ATOMIC_RELAXED);
}

static bool gate_shut(struct aq_gpu *gpu)
{
	for (unsigned i = 0; i < gpu->share_count; i++) {
		uint64_t *gate = &aq_gpu_share(gpu, i)->region->header.gate_until;
		uint64_t until = __atomic_load_n(gate, __ATOMIC_RELAXED);

		if (AQ_LIKELY(!until))
			continue;
		if (until - aq_now() <= GATE_NS)
			return true;
		__atomic_compare_exchange_n(gate, &until, 0, false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
	return false;
}

static void count_denied(struct aq_gpu *gpu)
{
	for (unsigned i = 0; i < gpu->share_count; i++) {
		struct aq_share *share = aq_gpu_share(gpu, i);
		struct aq_usage_slot *slot = aq_region_own_slot(share);

		__atomic_fetch_add(&share->region->header.denied_allocs, 1,
				   __ATOMIC_RELAXED);
		if (slot)
			__atomic_fetch_add(&slot->denied, 1, __ATOMIC_RELAXED);
	}
}

static bool has_slots(const struct aq_gpu *gpu)
{
	for (unsigned i = 0; i < gpu->share_count; i++)
		if (!aq_region_own_slot(aq_gpu_share(gpu, i)))
			return false;
	return true;
}

static bool wait_for_room(struct aq_hold *hold, bool wait)
{
	struct aq_gpu *gpu = hold->gpu;
	uint64_t deadline = aq_now() + PATIENCE;
	bool granted = false, gated = false;

	for (;;) {
		for (unsigned i = 0; i < gpu->share_count; i++)
			aq_region_reap(aq_gpu_share(gpu, i));
		granted = reserve_once(hold);
		if (granted || !wait || !has_slots(gpu) ||
		    settled_room(gpu) < hold->units || aq_now() > deadline)
			break;
		gate_set(gpu, aq_now() + GATE_NS);
		gated = true;
		aq_sys_nap(NAP);
	}
	if (gated)
		gate_set(gpu, 0);
	return granted;
}

static bool reserve_slow(struct aq_hold *hold)
{
	AQ_KEEP_ERRNO;
	struct aq_gpu *gpu = hold->gpu;
	bool locked[AQ_SHARES_MAX], granted;

	aq_lock(&gpu->short_lock);
	for (unsigned i = 0; i < gpu->share_count; i++)
		locked[i] = aq_region_lock(aq_gpu_share(gpu, i));
	granted = wait_for_room(hold, true);
	for (unsigned i = 0; i < gpu->share_count; i++)
		if (locked[i])
			aq_region_unlock(aq_gpu_share(gpu, i));
	aq_unlock(&gpu->short_lock);
	return granted;
}

static void count_granted(const struct aq_hold *hold)
{
	for (unsigned i = 0; i < hold->gpu->share_count; i++) {
		struct aq_share *share = aq_gpu_share(hold->gpu, i);
		struct aq_usage_slot *slot = aq_region_own_slot(share);
		uint64_t used;

		if (!slot || !hold->parts[i])
			continue;
		used = aq_word_used(__atomic_load_n(&slot->charge,
						    __ATOMIC_RELAXED))
		       << AQ_UNIT_SHIFT;
		__atomic_fetch_add(&slot->allocs, 1, __ATOMIC_RELAXED);
		if (used > __atomic_load_n(&slot->peak, __ATOMIC_RELAXED))
			__atomic_store_n(&slot->peak, used, __ATOMIC_RELAXED);
	}
}

AQ_HOT static bool reserve(struct aq_hold *hold, struct aq_gpu *gpu,
			   uint32_t units, bool wait)
{
	bool granted;

	hold->gpu = gpu;
	hold->units = units;
	if (AQ_UNLIKELY(units > gpu->limit))
		granted = false;
	else if (AQ_LIKELY(!gate_shut(gpu) && reserve_once(hold)))
		granted = true;
	else if (wait)
		granted = reserve_slow(hold);
	else
		granted = wait_for_room(hold, false);
	if (AQ_LIKELY(granted))
		count_granted(hold);
	else
		count_denied(gpu);
	return granted;
}

AQ_HOT bool aq_reserve(struct aq_hold *hold, struct aq_gpu *gpu, uint32_t units)
{
	return reserve(hold, gpu, units, true);
}

bool aq_reserve_more(struct aq_hold *hold, uint32_t units)
{
	struct aq_hold more;

	if (!reserve(&more, hold->gpu, units, false))
		return false;
	for (unsigned i = 0; i < hold->gpu->share_count; i++)
		hold->parts[i] += more.parts[i];
	hold->units += units;
	return true;
}

AQ_HOT void aq_commit(struct aq_hold *hold, uint32_t keep)
{
	for (unsigned i = 0; i < hold->gpu->share_count; i++) {
		uint32_t part = hold->parts[i];
		uint32_t kept = part < keep ? part : keep;

		if (part)
			change(aq_gpu_share(hold->gpu, i),
			       (int64_t)kept - (int64_t)part, -(int64_t)part);
		keep -= kept;
	}
}

/* Into the room there is; what there is no room for, to the first share. */
void aq_charge(struct aq_gpu *gpu, uint32_t units)
{
	for (unsigned i = gpu->share_count; i > 0 && units > 0; i--) {
		struct aq_share *share = aq_gpu_share(gpu, i - 1);
		uint64_t used = share_used(share);
		uint64_t room = used < share->limit ? share->limit - used : 0;
		uint32_t part = i > 1 && room < units ? (uint32_t)room : units;

		if (part && ensure_slot(share) &&
		    change_within(share, part, 0, AQ_FIELD_MAX))
			units -= part;
	}
}

/* Takes up to n settled units out of a share; says how many. */
static uint32_t release_part(struct aq_share *share, uint32_t n)
{
	uint64_t held = aq_word_settled(__atomic_load_n(&share->mirror,
							__ATOMIC_SEQ_CST));
	uint32_t part = held < n ? (uint32_t)held : n;

	if (part)
		change(share, -(int64_t)part, 0);
	return part;
}

/* It does not matter which share an allocation was charged to, only what is
 * charged in all: the last one gets it back first. */
AQ_HOT void aq_release(struct aq_gpu *gpu, uint32_t units)
{
	if (AQ_LIKELY(gpu->share_count == 1)) {
		change(aq_gpu_share(gpu, 0), -(int64_t)units, 0);
		return;
	}
	aq_lock(&gpu->release_lock);
	for (unsigned i = gpu->share_count; i > 0 && units > 0; i--)
		units -= release_part(aq_gpu_share(gpu, i - 1), units);
	aq_unlock(&gpu->release_lock);
}

bool aq_take_slots(struct aq_gpu *gpu)
{
	for (unsigned i = 0; i < gpu->share_count; i++)
		if (!ensure_slot(aq_gpu_share(gpu, i)))
			return false;
	return true;
}

/* The share remembers it for the next slot, should it lose this one. */
void aq_note_pools(struct aq_gpu *gpu, uint64_t bytes)
{
	struct aq_share *share = gpu->share_count ? aq_gpu_share(gpu, 0) : NULL;
	struct aq_usage_slot *slot = share ? aq_region_own_slot(share) : NULL;

	if (!share)
		return;
	__atomic_store_n(&share->pools, bytes, __ATOMIC_RELAXED);
	if (slot)
		__atomic_store_n(&slot->pools, bytes, __ATOMIC_RELAXED);
}

void aq_note_contexts(struct aq_gpu *gpu, uint64_t bytes)
{
	struct aq_share *share = gpu->share_count ? aq_gpu_share(gpu, 0) : NULL;
	struct aq_usage_slot *slot = share ? aq_region_own_slot(share) : NULL;

	if (!share)
		return;
	__atomic_store_n(&share->contexts, bytes, __ATOMIC_RELAXED);
	if (slot)
		__atomic_store_n(&slot->ctx, bytes, __ATOMIC_RELAXED);
}

void aq_charge_forked(struct aq_share *share)
{
	aq_agent_forked(share);
	aq_lock_reset(&share->slot_lock);
	share->place = aq_place(0, 0, AQ_NO_SLOT);
	share->mirror = 0;
	share->pools = 0;
	share->contexts = 0;
}
