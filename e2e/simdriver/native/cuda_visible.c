/*
 * Which devices this process has: the cards whose nodes it sees, and of a card in
 * MIG mode its MIG devices, of which a process has one at most.
 *
 * Sources: the MIG user guide on device enumeration ("CUDA can only enumerate a
 * single compute instance") and on CUDA_VISIBLE_DEVICES=MIG-<uuid>. What else may
 * stand in that variable is not simulated.
 */
#include "cuda_state.h"
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = c == '\0' ? NULL : strchr(digits, c);

	return at == NULL ? -1 : (int)(at - digits);
}

void uuid_of_text(const char *text, unsigned char uuid[16])
{
	memset(uuid, 0, 16);
	text += strlen("GPU-");
	for (unsigned digits = 0; *text != '\0' && digits < 32; text++) {
		int value = hex_digit(*text);
		if (value < 0)
			continue; /* a dash */
		unsigned char *byte = &uuid[digits / 2];
		*byte = (unsigned char)(*byte << 4 | value);
		digits++;
	}
}

/* The MIG device that the environment names, or NULL. */
static const char *chosen(void)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");

	return text != NULL && strncmp(text, "MIG-", 4) == 0 ? text : NULL;
}

static bool is_chosen(const struct mig_compute *compute)
{
	char text[MIG_UUID_TEXT];
	size_t length = MIG_UUID_TEXT - 1;

	if (chosen() == NULL)
		return true;
	mig_uuid_text(compute->uuid, text);
	return strncmp(chosen(), text, length) == 0 &&
	       (chosen()[length] == '\0' || chosen()[length] == ',');
}

static void add_card(unsigned index)
{
	const struct sim_gpu *gpu = &cuda.hardware.gpus[index];
	struct device device = {
		.gpu = gpu,
		.ledger_index = index,
		.total = gpu->memory_total - gpu->memory_reserved,
		.capacity = sim_gpu_capacity(gpu),
		.multiprocessors = gpu->multiprocessors,
	};

	snprintf(device.name, sizeof(device.name), "%s", gpu->name);
	uuid_of_text(gpu->uuid, device.uuid);
	cuda.devices[cuda.device_count++] = device;
}

static void add_partition(unsigned index, const struct mig_instance *instance,
			  unsigned instance_number, unsigned compute_number)
{
	const struct sim_gpu *gpu = &cuda.hardware.gpus[index];
	const struct mig_compute *compute = &instance->computes[compute_number];
	const struct sim_mig_profile *of =
		mig_profile_at(gpu, instance->profile);
	struct mig_compute_profile profile;

	if (of == NULL ||
	    !mig_compute_profile(gpu, of, compute->profile, &profile))
		return;
	uint64_t bytes = of->memory_mib << 20;
	/* Of some cards the largest profile has more than is not reserved. */
	uint64_t usable = bytes < sim_gpu_capacity(gpu) ?
				  bytes :
				  sim_gpu_capacity(gpu);
	struct device device = {
		.gpu = gpu,
		.ledger_index = index,
		.total = bytes,
		.capacity = usable - usable % SIM_BLOCK,
		.multiprocessors = profile.multiprocessors,
		.partition = { .instance = instance->serial,
			       .compute = compute->serial,
			       .gpu = index,
			       .instance_number = instance_number,
			       .compute_number = compute_number },
	};
	snprintf(device.name, sizeof(device.name), "%s MIG %s", gpu->name,
		 profile.name);
	memcpy(device.uuid, compute->uuid, sizeof(device.uuid));
	ledger_choose(&device.partition);
	cuda.devices[cuda.device_count++] = device;
}

/* True: the card has one for this process. */
static bool find_partition(unsigned index, const struct mig_card *card)
{
	const struct sim_gpu *gpu = &cuda.hardware.gpus[index];

	for (unsigned i = 0; i < MIG_INSTANCES; i++) {
		const struct mig_instance *instance = &card->instances[i];
		if (instance->serial == 0 ||
		    !sim_cap_visible(cuda.root, sim_cap_instance(gpu->minor, i)))
			continue;
		for (unsigned j = 0; j < MIG_COMPUTES; j++) {
			if (instance->computes[j].serial == 0 ||
			    !is_chosen(&instance->computes[j]) ||
			    !sim_cap_visible(cuda.root,
					     sim_cap_compute(gpu->minor, i, j)))
				continue;
			add_partition(index, instance, i, j);
			return true;
		}
	}
	return false;
}

void devices_find(void)
{
	static const struct ledger_partition none;
	struct mig_card card;
	bool divided = false;

	cuda.device_count = 0;
	ledger_choose(&none);
	mig_open_to_read(cuda.root);
	for (unsigned i = 0; i < cuda.hardware.gpu_count; i++) {
		if (!sim_gpu_visible(cuda.root, &cuda.hardware.gpus[i]))
			continue;
		mig_read(i, &card);
		if (card.current)
			divided = divided || find_partition(i, &card);
		else if (chosen() == NULL)
			add_card(i);
	}
}

bool device_there(unsigned gpu)
{
	struct mig_card card;

	mig_open_to_read(cuda.root); /* it may have been empty before */
	mig_read(gpu, &card);
	for (int i = 0; i < cuda.device_count; i++) {
		const struct ledger_partition *p = &cuda.devices[i].partition;
		if (cuda.devices[i].ledger_index != gpu)
			continue;
		if (p->instance == 0)
			return !card.current;
		const struct mig_instance *instance =
			&card.instances[p->instance_number];
		return instance->serial == p->instance &&
		       instance->computes[p->compute_number].serial ==
			       p->compute;
	}
	return false;
}
