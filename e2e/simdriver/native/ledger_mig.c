/*
 * What an admin does with MIG, and what the hardware then holds:
 *
 *	list				all cards as JSON
 *	mode GPU 0|1			sets the mode, as nvidia-smi -mig
 *	reset GPU			applies the pending mode, drops instances
 *	create GPU PROFILE START	prints the number of the instance
 *	compute GPU INSTANCE SLICES	prints the number of the compute instance
 *	destroy GPU INSTANCE
 *	destroy-compute GPU INSTANCE COMPUTE
 *
 * START may be -1. A failure is told by its number of nvmlReturn_t.
 */
#include "ledger_mig.h"
#include "ledger.h"
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct users {
	uint64_t compute; /* serial */
	const char *comma;
};

static void print_process(void *context, const struct ledger_slot *slot,
			  uint32_t pid)
{
	struct users *users = context;

	if (slot->partition.compute != users->compute)
		return;
	printf("%s%u", users->comma, pid);
	users->comma = ",";
}

static void print_compute(const struct sim_gpu *gpu,
			  const struct sim_mig_profile *of,
			  const struct mig_compute *compute, unsigned number)
{
	struct mig_compute_profile profile = { .name = "" };
	struct users users = { compute->serial, "" };
	char uuid[MIG_UUID_TEXT];

	mig_compute_profile(gpu, of, compute->profile, &profile);
	mig_uuid_text(compute->uuid, uuid);
	printf("{\"id\":%u,\"profile\":\"%s\",\"start\":%u,\"size\":%u,"
	       "\"uuid\":\"%s\",\"processes\":[",
	       number, profile.name, compute->start, compute->size, uuid);
	ledger_each(print_process, &users);
	printf("]}");
}

static void print_instance(const struct sim_gpu *gpu,
			   const struct mig_instance *instance, unsigned number)
{
	const struct sim_mig_profile *profile =
		mig_profile_at(gpu, instance->profile);
	const char *comma = "";

	printf("{\"id\":%u,\"profile\":\"%s\",\"start\":%u,\"size\":%u,"
	       "\"computes\":[",
	       number, profile->name, instance->start, instance->size);
	for (unsigned i = 0; i < MIG_COMPUTES; i++) {
		if (instance->computes[i].serial == 0)
			continue;
		printf("%s", comma);
		print_compute(gpu, profile, &instance->computes[i], i);
		comma = ",";
	}
	printf("]}");
}

static int list(const struct sim_hardware *hw)
{
	static struct mig_card card;

	for (unsigned g = 0; g < hw->gpu_count; g++) {
		const char *comma = "";
		mig_read(g, &card);
		printf("%s{\"uuid\":\"%s\",\"enabled\":%s,\"pending\":%s,"
		       "\"instances\":[",
		       g == 0 ? "[" : ",", hw->gpus[g].uuid,
		       card.current ? "true" : "false",
		       card.pending ? "true" : "false");
		for (unsigned i = 0; i < MIG_INSTANCES; i++) {
			if (card.instances[i].serial == 0)
				continue;
			printf("%s", comma);
			print_instance(&hw->gpus[g], &card.instances[i], i);
			comma = ",";
		}
		printf("]}");
	}
	printf("%s\n", hw->gpu_count == 0 ? "[]" : "]");
	return MIG_OK;
}

static int set_mode(const struct sim_gpu *gpu, unsigned card, unsigned mode)
{
	int activation = MIG_OK;
	int result = mig_set_mode(gpu, card, mode, &activation);

	return result != MIG_OK ? result : activation;
}

static int create(const struct sim_gpu *gpu, unsigned card, const char *name,
		  int start)
{
	struct mig_made made;
	int result = MIG_INVALID;

	for (unsigned i = 0; i < gpu->profile_count; i++)
		if (strcmp(gpu->profiles[i].name, name) == 0)
			result = mig_create(gpu, card, gpu->profiles[i].id,
					    start, &made);
	if (result == MIG_OK)
		printf("%u\n", made.number);
	return result;
}

static int create_compute(const struct sim_gpu *gpu, unsigned card,
			  unsigned instance, unsigned slices)
{
	static struct mig_card before;
	struct mig_compute_profile profile;
	struct mig_made made;
	int result = MIG_INVALID;

	mig_read(card, &before);
	if (instance >= MIG_INSTANCES)
		return result;
	const struct sim_mig_profile *of =
		mig_profile_at(gpu, before.instances[instance].profile);
	for (unsigned i = 0; of != NULL && i < MIG_COMPUTE_PROFILES; i++)
		if (mig_compute_profile(gpu, of, i, &profile) &&
		    profile.slices == slices)
			result = mig_create_compute(gpu, card, instance, 0, i,
						    MIG_ANYWHERE, &made);
	if (result == MIG_OK)
		printf("%u\n", made.number);
	return result;
}

int ledger_mig(const char *root, const struct sim_hardware *hw, int argc,
	       char **argv)
{
	unsigned n[3] = { 0 };
	const char *command = argv[0];

	if (!mig_open(root))
		return MIG_UNKNOWN;
	for (int i = 0; i < 3 && i + 1 < argc; i++)
		n[i] = (unsigned)strtol(argv[i + 1], NULL, 10);
	if (strcmp(command, "list") == 0)
		return list(hw);
	if (argc < 2 || n[0] >= hw->gpu_count)
		return MIG_INVALID;
	const struct sim_gpu *gpu = &hw->gpus[n[0]];
	if (strcmp(command, "mode") == 0 && argc == 3)
		return set_mode(gpu, n[0], n[1]);
	if (strcmp(command, "reset") == 0 && argc == 2)
		return mig_reset(n[0]);
	if (strcmp(command, "create") == 0 && argc == 4)
		return create(gpu, n[0], argv[2], (int)n[2]);
	if (strcmp(command, "compute") == 0 && argc == 4)
		return create_compute(gpu, n[0], n[1], n[2]);
	if (strcmp(command, "destroy") == 0 && argc == 3)
		return mig_destroy(n[0], n[1], 0);
	if (strcmp(command, "destroy-compute") == 0 && argc == 4)
		return mig_destroy_compute(n[0], n[1], n[2], 0);
	return MIG_INVALID;
}
