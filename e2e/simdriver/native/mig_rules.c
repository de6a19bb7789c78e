/*
 * What a card has room for. An instance takes memory slices, slices of the
 * multiprocessors and media engines, of all of which the card has as many as its
 * largest profile.
 */
#include "mig.h"

#include <stdio.h>
#include <string.h>

const struct sim_mig_profile *mig_profile_at(const struct sim_gpu *gpu,
					     unsigned index)
{
	for (unsigned i = 0; i < gpu->profile_count; i++)
		if (gpu->profiles[i].index == index)
			return &gpu->profiles[i];
	return NULL;
}

const struct sim_mig_profile *mig_profile_of_id(const struct sim_gpu *gpu,
						unsigned id)
{
	for (unsigned i = 0; i < gpu->profile_count; i++)
		if (gpu->profiles[i].id == id)
			return &gpu->profiles[i];
	return NULL;
}

static const struct sim_mig_profile *whole(const struct sim_gpu *gpu)
{
	const struct sim_mig_profile *largest = &gpu->profiles[0];

	for (unsigned i = 1; i < gpu->profile_count; i++)
		if (gpu->profiles[i].size > largest->size)
			largest = &gpu->profiles[i];
	return largest;
}

static bool overlap(unsigned start, unsigned size, unsigned other_start,
		    unsigned other_size)
{
	return start < other_start + other_size && other_start < start + size;
}

static bool allowed(const struct sim_mig_profile *profile, unsigned start)
{
	for (unsigned i = 0; i < profile->start_count; i++)
		if (profile->starts[i] == start)
			return true;
	return false;
}

static void add(struct sim_mig_profile *sum, const struct sim_mig_profile *one)
{
	sum->slices += one->slices;
	sum->decoders += one->decoders;
	sum->encoders += one->encoders;
	sum->jpeg += one->jpeg;
	sum->ofa += one->ofa;
}

static bool enough(const struct sim_mig_profile *all,
		   const struct sim_mig_profile *sum)
{
	return sum->slices <= all->slices && sum->decoders <= all->decoders &&
	       sum->encoders <= all->encoders && sum->jpeg <= all->jpeg &&
	       sum->ofa <= all->ofa;
}

int mig_fits(const struct sim_gpu *gpu, const struct mig_card *card,
	     const struct sim_mig_profile *profile, unsigned start)
{
	struct sim_mig_profile sum = *profile;
	unsigned same = 1;

	if (!allowed(profile, start))
		return MIG_INVALID;
	for (unsigned i = 0; i < MIG_INSTANCES; i++) {
		const struct mig_instance *other = &card->instances[i];
		const struct sim_mig_profile *its =
			mig_profile_at(gpu, other->profile);
		if (other->serial == 0 || its == NULL)
			continue;
		if (overlap(start, profile->size, other->start, other->size))
			return MIG_FULL;
		same += its == profile;
		add(&sum, its);
	}
	return same <= profile->instances && enough(whole(gpu), &sum) ?
		       MIG_OK :
		       MIG_FULL;
}

/* The capabilities that instances of a size may have: one for those of the whole
 * card, the next two for halves, and so on. */
static void numbers(const struct sim_gpu *gpu,
		    const struct sim_mig_profile *profile, unsigned *first,
		    unsigned *count)
{
	*count = whole(gpu)->size / profile->size;
	*first = *count - 1;
}

int mig_free_number(const struct sim_gpu *gpu, const struct mig_card *card,
		    const struct sim_mig_profile *profile)
{
	unsigned first, count;

	numbers(gpu, profile, &first, &count);
	for (unsigned i = first; i < first + count && i < MIG_INSTANCES; i++)
		if (card->instances[i].serial == 0)
			return (int)i;
	return -1;
}

unsigned mig_capacity(const struct sim_gpu *gpu, const struct mig_card *card,
		      const struct sim_mig_profile *profile)
{
	struct mig_card trial = *card;
	unsigned count = 0;

	for (unsigned i = 0; i < profile->start_count; i++) {
		unsigned start = profile->starts[i];
		int number = mig_free_number(gpu, &trial, profile);
		if (number < 0 ||
		    mig_fits(gpu, &trial, profile, start) != MIG_OK)
			continue;
		trial.instances[number] = (struct mig_instance){
			.serial = 1,
			.profile = profile->index,
			.start = start,
			.size = profile->size,
		};
		count++;
	}
	return count;
}

/* The slices of NVML_COMPUTE_INSTANCE_PROFILE_*; 0: none that a card has. */
static const unsigned compute_slices[MIG_COMPUTE_PROFILES] = { 1, 2, 3, 4, 7 };

/* What one slice has of the card's multiprocessors. */
static unsigned slice_multiprocessors(const struct sim_gpu *gpu)
{
	const struct sim_mig_profile *smallest = &gpu->profiles[0];

	for (unsigned i = 1; i < gpu->profile_count; i++)
		if (gpu->profiles[i].slices == 1 &&
		    gpu->profiles[i].size < smallest->size)
			smallest = &gpu->profiles[i];
	return smallest->multiprocessors / smallest->slices;
}

bool mig_compute_profile(const struct sim_gpu *gpu,
			 const struct sim_mig_profile *of, unsigned index,
			 struct mig_compute_profile *profile)
{
	unsigned slices =
		index < MIG_COMPUTE_PROFILES ? compute_slices[index] : 0;

	/* Three of four slices are not to be had. */
	if (slices == 0 || slices > of->slices ||
	    (slices == 3 && of->slices == 4))
		return false;
	*profile = (struct mig_compute_profile){ .index = index,
						 .slices = slices };
	unsigned step = slices == 3 ? 4 : slices;
	for (unsigned at = 0; at + slices <= of->slices; at += step)
		profile->starts[profile->instances++] = at;
	if (slices == of->slices) {
		profile->multiprocessors = of->multiprocessors;
		snprintf(profile->name, sizeof(profile->name), "%s", of->name);
		return true;
	}
	profile->multiprocessors = slices * slice_multiprocessors(gpu);
	snprintf(profile->name, sizeof(profile->name), "%uc.%s", slices,
		 of->name);
	return true;
}

int mig_compute_fits(const struct mig_instance *instance,
		     const struct mig_compute_profile *profile, unsigned start)
{
	bool known = false;

	for (unsigned i = 0; i < profile->instances; i++)
		known |= profile->starts[i] == start;
	if (!known)
		return MIG_INVALID;
	for (unsigned i = 0; i < MIG_COMPUTES; i++) {
		const struct mig_compute *other = &instance->computes[i];
		if (other->serial != 0 &&
		    overlap(start, profile->slices, other->start, other->size))
			return MIG_FULL;
	}
	return MIG_OK;
}

unsigned mig_compute_capacity(const struct mig_instance *instance,
			      const struct mig_compute_profile *profile)
{
	unsigned count = 0;

	for (unsigned i = 0; i < profile->instances; i++)
		count += mig_compute_fits(instance, profile,
					  profile->starts[i]) == MIG_OK;
	return count;
}
