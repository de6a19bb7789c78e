/*
 * The contexts of this process, by handle, and what each GPU's are charged.
 *
 * Loading a module is not charged here, and so not wrapped. No call tells what it
 * takes; it is loaded when it is first used; and on a GPU that others use too,
 * what is free before and after differs by whatever they did meanwhile. It is in
 * what the agent measures of the process, and so in what contexts are charged.
 *
 * One lock guards it all. It is held while the cost is reserved, so that a
 * second thread's context waits until it is known whether the first one's fits,
 * but not while the driver works.
 */
#include "charge.h"
#include "contexts.h"
#include "fork.h"
#include "pool.h"
#include "region.h"
#include "table.h"

struct account {
	uint32_t live;	  /* contexts, and calls that make one */
	uint32_t charged; /* units */
	bool measured;	  /* charged is what the agent said */
};

static struct aq_lock contexts_lock;
static struct account accounts[AQ_SHARES_MAX + 1]; /* by the GPU's index */

/* Handle to GPU, kind, device and units grown. A green context may have the
 * handle of the context that it is seen as; handles are even. */
static struct aq_table contexts;

#define KIND_SHIFT 8
#define DEVICE_SHIFT 16
#define GROWN_SHIFT 32

static uint64_t key_of(const void *handle, enum aq_context_kind kind)
{
	return (uint64_t)(uintptr_t)handle | (kind == AQ_GREEN);
}

static enum aq_context_kind kind_of(const struct aq_entry *entry)
{
	return (enum aq_context_kind)(entry->value >> KIND_SHIFT & 0xff);
}

static struct account *account_of(const struct aq_gpu *gpu)
{
	return &accounts[gpu->index];
}

static struct aq_gpu *gpu_of(const struct aq_entry *entry)
{
	return &aq_gpus[entry->value & 0xff];
}

static uint32_t grown(const struct aq_entry *entry)
{
	return (uint32_t)(entry->value >> GROWN_SHIFT);
}

static struct aq_entry *find(const void *handle, enum aq_context_kind kind)
{
	return handle ? aq_table_find(&contexts, key_of(handle, kind)) : NULL;
}

static void set_charge(struct aq_gpu *gpu, uint32_t units)
{
	struct account *account = account_of(gpu);

	if (units < account->charged)
		aq_release(gpu, account->charged - units);
	account->charged = units;
	aq_note_contexts(gpu, (uint64_t)units << AQ_UNIT_SHIFT);
}

static bool reserve(struct aq_gpu *gpu, uint32_t units)
{
	struct aq_hold hold;

	if (!aq_reserve(&hold, gpu, units) &&
	    !(aq_pools_trim(gpu) && aq_reserve(&hold, gpu, units)))
		return false;
	aq_commit(&hold, units);
	set_charge(gpu, account_of(gpu)->charged + units);
	return true;
}

/* What the agent measured of an earlier context of ours says nothing of this
 * one; so its page counts from its next write on. */
static bool reserve_first(struct aq_gpu *gpu)
{
	struct aq_agent_view view;
	struct aq_share *share;

	if (gpu->closed || !aq_take_slots(gpu))
		return false;
	share = aq_gpu_share(gpu, 0);
	aq_agent_read(share, &view);
	account_of(gpu)->measured = false;
	__atomic_store_n(&gpu->context_seq, aq_agent_seq(share),
			 __ATOMIC_RELAXED);
	return reserve(gpu, view.context_mib);
}

bool aq_context_begin(struct aq_gpu *gpu)
{
	struct account *account = account_of(gpu);
	bool granted = true;

	aq_lock(&contexts_lock);
	if (account->live == 0)
		granted = aq_table_make_room(&contexts, 1) &&
			  reserve_first(gpu);
	if (granted)
		account->live++;
	aq_unlock(&contexts_lock);
	return granted;
}

static void leave(struct aq_gpu *gpu)
{
	struct account *account = account_of(gpu);

	if (--account->live == 0)
		set_charge(gpu, 0);
}

/* A context that ends takes with it what it had grown by. Once it has been
 * measured together with others, only the agent can tell. */
static void retire(uint64_t value)
{
	const struct aq_entry entry = { .value = value };
	struct account *account = account_of(gpu_of(&entry));

	if (!account->measured)
		set_charge(gpu_of(&entry), account->charged - grown(&entry));
	leave(gpu_of(&entry));
}

static void forget(struct aq_entry *entry)
{
	uint64_t value = entry->value;

	aq_table_remove(&contexts, entry);
	retire(value);
}

/* An entry takes over what aq_context_begin counted. Without memory of our own
 * for it, that stays counted. */
static void record(uint64_t key, uint64_t value)
{
	struct aq_entry *entry = aq_table_find(&contexts, key);

	if (entry && kind_of(entry) == AQ_PRIMARY) {
		leave(gpu_of(entry)); /* retained once more */
		return;
	}
	if (entry)
		forget(entry); /* we missed its end */
	if (aq_table_make_room(&contexts, 1))
		aq_table_put(&contexts, key, value);
}

void aq_context_made(struct aq_gpu *gpu, CUdevice device, const void *handle,
		     enum aq_context_kind kind)
{
	aq_lock(&contexts_lock);
	if (handle)
		record(key_of(handle, kind),
		       gpu->index | (uint64_t)kind << KIND_SHIFT |
			       (uint64_t)(device & 0xffff) << DEVICE_SHIFT);
	else
		leave(gpu);
	aq_unlock(&contexts_lock);
}

bool aq_context_take(const void *handle, enum aq_context_kind kind,
		     struct aq_context *context)
{
	struct aq_entry *entry;

	aq_lock(&contexts_lock);
	entry = find(handle, kind);
	if (entry) {
		*context = (struct aq_context){ entry->key, entry->value,
						gpu_of(entry) };
		aq_table_remove(&contexts, entry);
	}
	aq_unlock(&contexts_lock);
	return entry != NULL;
}

void aq_context_put_back(const struct aq_context *context)
{
	aq_lock(&contexts_lock);
	record(context->key, context->value);
	aq_unlock(&contexts_lock);
}

static bool is_active(CUdevice device)
{
	unsigned flags;
	int active = 1;

	return !aq_real.cuDevicePrimaryCtxGetState ||
	       aq_real.cuDevicePrimaryCtxGetState(device, &flags, &active) !=
		       CUDA_SUCCESS ||
	       active;
}

/* Asked under the lock: a retain that follows finds the entry gone, one that
 * came before makes the context active. */
static bool primary_ended(const struct aq_gpu *gpu, CUdevice device,
			  CUcontext *context)
{
	*context = NULL;
	if (is_active(device))
		return false;
	for (uint32_t i = 0; i < contexts.capacity; i++) {
		struct aq_entry *entry = &contexts.entries[i];

		if (entry->key && kind_of(entry) == AQ_PRIMARY &&
		    gpu_of(entry) == gpu) {
			*context = (CUcontext)(uintptr_t)entry->key;
			forget(entry);
			break;
		}
	}
	return true;
}

bool aq_primary_ended(struct aq_gpu *gpu, CUdevice device, CUcontext *context)
{
	bool ended;

	aq_lock(&contexts_lock);
	ended = primary_ended(gpu, device, context);
	aq_unlock(&contexts_lock);
	return ended;
}

CUcontext aq_context_retire(const struct aq_context *context)
{
	const struct aq_entry entry = { context->key, context->value };
	CUcontext primary = NULL;

	aq_lock(&contexts_lock);
	retire(context->value);
	if (kind_of(&entry) == AQ_GREEN)
		primary_ended(context->gpu,
			      (CUdevice)(entry.value >> DEVICE_SHIFT & 0xffff),
			      &primary);
	aq_unlock(&contexts_lock);
	return primary;
}

bool aq_context_grow(CUcontext context, uint32_t units)
{
	struct aq_entry *entry;
	bool granted = true;

	aq_lock(&contexts_lock);
	entry = find(context, AQ_CREATED);
	if (entry && units) {
		granted = reserve(gpu_of(entry), units);
		if (granted)
			entry->value += (uint64_t)units << GROWN_SHIFT;
	}
	aq_unlock(&contexts_lock);
	return granted;
}

/* What was measured may hold only a part of it. */
void aq_context_shrink(CUcontext context, uint32_t units)
{
	struct aq_entry *entry;

	aq_lock(&contexts_lock);
	entry = find(context, AQ_CREATED);
	if (entry && units > grown(entry))
		units = grown(entry);
	if (entry && units) {
		struct account *account = account_of(gpu_of(entry));

		entry->value -= (uint64_t)units << GROWN_SHIFT;
		if (units > account->charged)
			units = account->charged;
		set_charge(gpu_of(entry), account->charged - units);
	}
	aq_unlock(&contexts_lock);
}

/* Of our slot in the GPU's first share, which is where the agent looks. */
static uint32_t measured(const struct aq_gpu *gpu)
{
	const struct aq_share *share = aq_gpu_share(gpu, 0);
	uint64_t place = __atomic_load_n(&share->place, __ATOMIC_SEQ_CST);

	return aq_agent_overhead(share, aq_place_slot(place),
				 aq_place_generation(place));
}

/* An odd sequence is remembered too: there is nothing to see until it changes. */
void aq_contexts_measure(struct aq_gpu *gpu)
{
	struct account *account = account_of(gpu);
	uint64_t seq;
	uint32_t units;

	aq_lock(&contexts_lock);
	seq = aq_agent_seq(aq_gpu_share(gpu, 0));
	units = account->live ? measured(gpu) : 0;
	if (units) {
		if (units > account->charged)
			aq_charge(gpu, units - account->charged);
		account->measured = true;
		set_charge(gpu, units);
	}
	__atomic_store_n(&gpu->context_seq, seq, __ATOMIC_RELAXED);
	aq_unlock(&contexts_lock);
}

void aq_contexts_forked(void)
{
	aq_lock_reset(&contexts_lock);
	aq_table_clear(&contexts);
	for (unsigned i = 0; i < AQ_SHARES_MAX + 1; i++)
		accounts[i] = (struct account){ 0 };
}
