/* GPU instances: what a card can be divided into, and its division. */
#include "nvml_handle.h"

#include <stdio.h>
#include <string.h>

static void give_v2(const struct sim_mig_profile *p,
		    nvmlGpuInstanceProfileInfo_v2_t *info)
{
	*info = (nvmlGpuInstanceProfileInfo_v2_t){
		.version = info->version,
		.id = p->id,
		.isP2pSupported = p->p2p,
		.sliceCount = p->slices,
		.instanceCount = p->instances,
		.multiprocessorCount = p->multiprocessors,
		.copyEngineCount = p->copy_engines,
		.decoderCount = p->decoders,
		.encoderCount = p->encoders,
		.jpegCount = p->jpeg,
		.ofaCount = p->ofa,
		.memorySizeMB = p->memory_mib,
	};
	snprintf(info->name, sizeof(info->name), "MIG %s", p->name);
}

static void give_v3(const struct sim_mig_profile *p,
		    nvmlGpuInstanceProfileInfo_v3_t *info)
{
	*info = (nvmlGpuInstanceProfileInfo_v3_t){
		.version = info->version,
		.id = p->id,
		.sliceCount = p->slices,
		.instanceCount = p->instances,
		.multiprocessorCount = p->multiprocessors,
		.copyEngineCount = p->copy_engines,
		.decoderCount = p->decoders,
		.encoderCount = p->encoders,
		.jpegCount = p->jpeg,
		.ofaCount = p->ofa,
		.memorySizeMB = p->memory_mib,
		.capabilities = (p->p2p ? NVML_GPU_INSTANCE_P2P : 0) |
				(p->graphics ? NVML_GPU_INSTANCE_GFX : 0),
	};
	snprintf(info->name, sizeof(info->name), "MIG %s", p->name);
}

/* Profiles are known whether or not the card is in MIG mode. */
static nvmlReturn_t find_profile(const char *function, nvmlDevice_t device,
				 unsigned index, const void *out,
				 const struct sim_mig_profile **profile)
{
	struct mig_card card;
	nvmlReturn_t result = card_enter(function, device, false, &card);

	if (result != NVML_SUCCESS)
		return result;
	if (out == NULL || index >= NVML_GPU_INSTANCE_PROFILES)
		return NVML_ERROR_INVALID_ARGUMENT;
	*profile = mig_profile_at(device->gpu, index);
	return *profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile,
				    nvmlGpuInstanceProfileInfo_t *info)
{
	const struct sim_mig_profile *p;
	nvmlReturn_t result = find_profile(__func__, device, profile, info, &p);

	if (result != NVML_SUCCESS)
		return result;
	*info = (nvmlGpuInstanceProfileInfo_t){
		p->id,	     p->p2p,	      p->slices,
		p->instances, p->multiprocessors, p->copy_engines,
		p->decoders, p->encoders,     p->jpeg,
		p->ofa,	     p->memory_mib,
	};
	return NVML_SUCCESS;
}

static nvmlReturn_t give_versioned(const struct sim_mig_profile *profile,
				   void *info)
{
	unsigned version = *(const unsigned *)info;

	if (version == NVML_VERSIONED(nvmlGpuInstanceProfileInfo_v2_t, 2))
		give_v2(profile, info);
	else if (version == NVML_VERSIONED(nvmlGpuInstanceProfileInfo_v3_t, 3))
		give_v3(profile, info);
	else
		return NVML_ERROR_INVALID_ARGUMENT; /* so says the manual */
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device,
						  unsigned profile, void *info)
{
	const struct sim_mig_profile *p;
	nvmlReturn_t result = find_profile(__func__, device, profile, info, &p);

	return result == NVML_SUCCESS ? give_versioned(p, info) : result;
}

/* The same by what NVML calls the profile's ID, as the calls below take it. */
static nvmlReturn_t find_by_id(const char *function, nvmlDevice_t device,
			       bool divided, unsigned id, const void *out,
			       struct mig_card *card,
			       const struct sim_mig_profile **profile)
{
	nvmlReturn_t result = card_enter(function, device, divided, card);

	if (result != NVML_SUCCESS)
		return result;
	*profile = mig_profile_of_id(device->gpu, id);
	return out == NULL || *profile == NULL ? NVML_ERROR_INVALID_ARGUMENT :
						 NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device,
						      unsigned id, void *info)
{
	struct mig_card card;
	const struct sim_mig_profile *p;
	nvmlReturn_t result =
		find_by_id(__func__, device, false, id, info, &card, &p);

	return result == NVML_SUCCESS ? give_versioned(p, info) : result;
}

/* placements NULL: only how many. Otherwise there is room for all. */
static nvmlReturn_t list_placements(const char *function, nvmlDevice_t device,
				    unsigned id, nvmlPlacement_t *placements,
				    unsigned *count)
{
	struct mig_card card;
	const struct sim_mig_profile *p;
	nvmlReturn_t result =
		find_by_id(function, device, false, id, count, &card, &p);

	if (result != NVML_SUCCESS)
		return result;
	*count = p->start_count;
	for (unsigned i = 0; placements != NULL && i < p->start_count; i++)
		placements[i] = (nvmlPlacement_t){ p->starts[i], p->size };
	return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
					      nvmlPlacement_t *placements,
					      unsigned *count)
{
	return list_placements(__func__, device, id, placements, count);
}

nvmlReturn_t
nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id,
					   nvmlPlacement_t *placements,
					   unsigned *count)
{
	return list_placements(__func__, device, id, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device,
						       unsigned id,
						       unsigned *count)
{
	struct mig_card card;
	const struct sim_mig_profile *p;
	nvmlReturn_t result =
		find_by_id(__func__, device, true, id, count, &card, &p);

	if (result == NVML_SUCCESS)
		*count = mig_capacity(device->gpu, &card, p);
	return result;
}

static nvmlReturn_t give_handle(nvmlDevice_t device, unsigned number,
				uint64_t serial, nvmlGpuInstance_t *instance)
{
	instance->handle = handle_of_instance(device, number, serial);
	return instance->handle == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

static nvmlReturn_t create(const char *function, nvmlDevice_t device,
			   unsigned id, int start, nvmlGpuInstance_t *instance)
{
	struct mig_card card;
	struct mig_made made;
	nvmlReturn_t result = card_enter(function, device, true, &card);

	if (result != NVML_SUCCESS)
		return result;
	if (instance == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!may_divide())
		return NVML_ERROR_NO_PERMISSION;
	result = (nvmlReturn_t)mig_create(device->gpu, device->ledger_index, id,
					  start, &made);
	if (result != NVML_SUCCESS)
		return result;
	return give_handle(device, made.number, made.serial, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id,
					 nvmlGpuInstance_t *instance)
{
	return create(__func__, device, id, MIG_ANYWHERE, instance);
}

nvmlReturn_t
nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
					 const nvmlPlacement_t *placement,
					 nvmlGpuInstance_t *instance)
{
	struct mig_card card;
	const struct sim_mig_profile *p;
	nvmlReturn_t result =
		find_by_id(__func__, device, true, id, placement, &card, &p);

	if (result != NVML_SUCCESS)
		return result;
	if (placement->size != p->size || placement->start > INT32_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	return create(__func__, device, id, (int)placement->start, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	struct instance_view view;
	nvmlReturn_t result = instance_enter(__func__, instance, &view);

	if (result != NVML_SUCCESS)
		return result;
	if (!may_divide())
		return NVML_ERROR_NO_PERMISSION;
	return (nvmlReturn_t)mig_destroy(view.device->ledger_index,
					 instance.handle->number,
					 instance.handle->serial);
}

/* There is room for as many as the profile may have. */
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id,
				       nvmlGpuInstance_t *instances,
				       unsigned *count)
{
	struct mig_card card;
	const struct sim_mig_profile *p;
	nvmlReturn_t result =
		find_by_id(__func__, device, true, id, count, &card, &p);
	unsigned found = 0;

	if (result == NVML_SUCCESS && instances == NULL)
		result = NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; result == NVML_SUCCESS && i < MIG_INSTANCES; i++)
		if (card.instances[i].serial != 0 &&
		    card.instances[i].profile == p->index &&
		    sees_instance(device->gpu, i))
			result = give_handle(device, i,
					     card.instances[i].serial,
					     &instances[found++]);
	if (result == NVML_SUCCESS)
		*count = found;
	return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned number,
					  nvmlGpuInstance_t *instance)
{
	struct mig_card card;
	nvmlReturn_t result = card_enter(__func__, device, true, &card);

	if (result != NVML_SUCCESS)
		return result;
	if (instance == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (number >= MIG_INSTANCES || card.instances[number].serial == 0 ||
	    !sees_instance(device->gpu, number))
		return NVML_ERROR_NOT_FOUND;
	return give_handle(device, number, card.instances[number].serial,
			   instance);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance,
				    nvmlGpuInstanceInfo_t *info)
{
	struct instance_view view;
	nvmlReturn_t result = instance_enter(__func__, instance, &view);

	if (result != NVML_SUCCESS)
		return result;
	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlGpuInstanceInfo_t){
		.device = view.device,
		.id = instance.handle->number,
		.profileId = view.profile->id,
		.placement = { view.instance->start, view.instance->size },
	};
	return NVML_SUCCESS;
}
