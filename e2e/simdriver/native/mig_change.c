/* Dividing cards: changes of mode, and instances that come and go. */
#include "ledger.h"
#include "mig.h"

#include <string.h>
#include <sys/random.h>

/* Where a test may let the process die. */
#ifndef MIG_STEP
#define MIG_STEP(step) ((void)0)
#endif

/* From Hopper on, a mode takes effect without a reset of the card. */
#define RESETLESS_MAJOR 9

static void put_serial(uint64_t *serial, uint64_t value)
{
	MIG_STEP("serial: before");
	__atomic_store_n(serial, value, __ATOMIC_RELEASE);
	MIG_STEP("serial: after");
}

static void put_mode(uint32_t *mode, uint32_t value)
{
	MIG_STEP("mode: before");
	__atomic_store_n(mode, value, __ATOMIC_RELEASE);
}

/* A number that is lost with a process that dies does no harm. */
static uint64_t new_serial(struct mig_file *file)
{
	uint64_t serial = ++file->serials;

	MIG_STEP("serial: taken");
	return serial;
}

static bool has_instances(const struct mig_card *card)
{
	for (unsigned i = 0; i < MIG_INSTANCES; i++)
		if (card->instances[i].serial != 0)
			return true;
	return false;
}

static void make_current(void *card)
{
	put_mode(&((struct mig_card *)card)->current,
		 ((struct mig_card *)card)->pending);
}

static int set_mode_locked(const struct sim_gpu *gpu, struct mig_card *card,
			   unsigned index, unsigned mode, int *activation)
{
	if (mode == 0 && has_instances(card))
		return *activation = MIG_IN_USE;
	put_mode(&card->pending, mode);
	if (card->current == mode)
		return MIG_OK;
	if (gpu->cc_major < RESETLESS_MAJOR)
		*activation = MIG_RESET_REQUIRED;
	else if (!ledger_unless_used(index, 0, make_current, card))
		*activation = MIG_IN_USE;
	return MIG_OK;
}

int mig_set_mode(const struct sim_gpu *gpu, unsigned card, unsigned mode,
		 int *activation)
{
	if (gpu->profile_count == 0)
		return MIG_NOT_SUPPORTED;
	if (mode > 1)
		return MIG_INVALID;
	*activation = MIG_OK;
	struct mig_file *file = mig_lock();
	if (file == NULL)
		return MIG_NO_PERMISSION;
	int result = set_mode_locked(gpu, &file->cards[card], card, mode,
				     activation);
	mig_unlock();
	return result;
}

static void forget_instance(struct mig_instance *instance)
{
	for (unsigned i = 0; i < MIG_COMPUTES; i++)
		if (instance->computes[i].serial != 0)
			put_serial(&instance->computes[i].serial, 0);
	if (instance->serial != 0)
		put_serial(&instance->serial, 0);
}

static void reset(void *arg)
{
	struct mig_card *card = arg;

	for (unsigned i = 0; i < MIG_INSTANCES; i++)
		forget_instance(&card->instances[i]);
	make_current(card);
}

int mig_reset(unsigned card)
{
	struct mig_file *file = mig_lock();

	if (file == NULL)
		return MIG_NO_PERMISSION;
	bool done = ledger_unless_used(card, 0, reset, &file->cards[card]);
	mig_unlock();
	return done ? MIG_OK : MIG_IN_USE;
}

/* The place that was asked for, or the last one that is free: what is larger begins
 * at the front. */
static int find_place(const struct sim_gpu *gpu, const struct mig_card *card,
		      const struct sim_mig_profile *profile, int wanted,
		      unsigned *start)
{
	if (wanted != MIG_ANYWHERE) {
		*start = (unsigned)wanted;
		return mig_fits(gpu, card, profile, *start);
	}
	for (unsigned i = profile->start_count; i-- > 0;) {
		*start = profile->starts[i];
		if (mig_fits(gpu, card, profile, *start) == MIG_OK)
			return MIG_OK;
	}
	return MIG_FULL;
}

static int create_locked(const struct sim_gpu *gpu, struct mig_file *file,
			 struct mig_card *card,
			 const struct sim_mig_profile *profile, int wanted,
			 struct mig_made *made)
{
	unsigned start;

	if (!card->current)
		return MIG_NOT_SUPPORTED;
	int result = find_place(gpu, card, profile, wanted, &start);
	int found = mig_free_number(gpu, card, profile);
	if (result != MIG_OK)
		return result;
	if (found < 0)
		return MIG_FULL;
	struct mig_instance *instance = &card->instances[found];
	instance->profile = profile->index;
	instance->start = start;
	instance->size = profile->size;
	*made = (struct mig_made){ (unsigned)found, new_serial(file) };
	put_serial(&instance->serial, made->serial);
	return MIG_OK;
}

int mig_create(const struct sim_gpu *gpu, unsigned card, unsigned profile_id,
	       int start, struct mig_made *made)
{
	const struct sim_mig_profile *profile =
		mig_profile_of_id(gpu, profile_id);

	if (gpu->profile_count == 0)
		return MIG_NOT_SUPPORTED;
	if (profile == NULL)
		return MIG_INVALID;
	struct mig_file *file = mig_lock();
	if (file == NULL)
		return MIG_NO_PERMISSION;
	int result = create_locked(gpu, file, &file->cards[card], profile,
				   start, made);
	mig_unlock();
	return result;
}

static struct mig_instance *find_instance(struct mig_file *file, unsigned card,
					  unsigned number, uint64_t serial)
{
	if (number >= MIG_INSTANCES)
		return NULL;
	struct mig_instance *instance = &file->cards[card].instances[number];
	bool same = serial == 0 || instance->serial == serial;
	return instance->serial != 0 && same ? instance : NULL;
}

static bool has_computes(const struct mig_instance *instance)
{
	for (unsigned i = 0; i < MIG_COMPUTES; i++)
		if (instance->computes[i].serial != 0)
			return true;
	return false;
}

int mig_destroy(unsigned card, unsigned number, uint64_t serial)
{
	int result = MIG_OK;
	struct mig_file *file = mig_lock();

	if (file == NULL)
		return MIG_NO_PERMISSION;
	struct mig_instance *instance =
		find_instance(file, card, number, serial);
	if (instance == NULL)
		result = MIG_INVALID;
	else if (has_computes(instance))
		result = MIG_IN_USE;
	else
		put_serial(&instance->serial, 0);
	mig_unlock();
	return result;
}

static int find_compute_place(const struct mig_instance *instance,
			      const struct mig_compute_profile *profile,
			      int wanted, unsigned *start)
{
	if (wanted != MIG_ANYWHERE) {
		*start = (unsigned)wanted;
		return mig_compute_fits(instance, profile, *start);
	}
	for (unsigned i = profile->instances; i-- > 0;) {
		*start = profile->starts[i];
		if (mig_compute_fits(instance, profile, *start) == MIG_OK)
			return MIG_OK;
	}
	return MIG_FULL;
}

static void new_uuid(unsigned char uuid[16])
{
	if (getrandom(uuid, 16, 0) != 16)
		memset(uuid, 0, 16);
	uuid[6] = (unsigned char)((uuid[6] & 0x0f) | 0x50); /* as the real */
	uuid[8] = (unsigned char)((uuid[8] & 0x3f) | 0x80);
}

static int create_compute_locked(const struct sim_gpu *gpu,
				 struct mig_file *file,
				 struct mig_instance *instance, unsigned index,
				 int wanted, struct mig_made *made)
{
	const struct sim_mig_profile *of =
		mig_profile_at(gpu, instance->profile);
	struct mig_compute_profile profile;
	unsigned start, at = 0;

	if (of == NULL || !mig_compute_profile(gpu, of, index, &profile))
		return MIG_NOT_SUPPORTED;
	int result = find_compute_place(instance, &profile, wanted, &start);
	if (result != MIG_OK)
		return result;
	while (instance->computes[at].serial != 0) /* fewer than its slices */
		at++;
	struct mig_compute *compute = &instance->computes[at];
	compute->profile = index;
	compute->start = start;
	compute->size = profile.slices;
	new_uuid(compute->uuid);
	*made = (struct mig_made){ at, new_serial(file) };
	put_serial(&compute->serial, made->serial);
	return MIG_OK;
}

int mig_create_compute(const struct sim_gpu *gpu, unsigned card,
		       unsigned instance, uint64_t serial, unsigned profile,
		       int start, struct mig_made *made)
{
	int result = MIG_INVALID;
	struct mig_file *file = mig_lock();

	if (file == NULL)
		return MIG_NO_PERMISSION;
	struct mig_instance *found =
		find_instance(file, card, instance, serial);
	if (found != NULL)
		result = create_compute_locked(gpu, file, found, profile,
					       start, made);
	mig_unlock();
	return result;
}

static void forget_compute(void *compute)
{
	put_serial(&((struct mig_compute *)compute)->serial, 0);
}

int mig_destroy_compute(unsigned card, unsigned instance, unsigned number,
			uint64_t serial)
{
	int result = MIG_INVALID;
	struct mig_file *file = mig_lock();

	if (file == NULL)
		return MIG_NO_PERMISSION;
	struct mig_instance *in = find_instance(file, card, instance, 0);
	struct mig_compute *compute = in != NULL && number < MIG_COMPUTES ?
					      &in->computes[number] :
					      NULL;
	if (compute != NULL && compute->serial != 0 &&
	    (serial == 0 || compute->serial == serial))
		result = ledger_unless_used(card, compute->serial,
					    forget_compute, compute) ?
				 MIG_OK :
				 MIG_IN_USE;
	mig_unlock();
	return result;
}
