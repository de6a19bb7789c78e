/* Compute instances: how the multiprocessors of a GPU instance are divided. */
#include "nvml_handle.h"

#include <stdio.h>
#include <string.h>

static nvmlComputeInstanceProfileInfo_t
info_of(const struct instance_view *view, const struct mig_compute_profile *p)
{
	return (nvmlComputeInstanceProfileInfo_t){
		.id = p->index,
		.sliceCount = p->slices,
		.instanceCount = p->instances,
		.multiprocessorCount = p->multiprocessors,
		.sharedCopyEngineCount = view->profile->copy_engines,
		.sharedDecoderCount = view->profile->decoders,
		.sharedEncoderCount = view->profile->encoders,
		.sharedJpegCount = view->profile->jpeg,
		.sharedOfaCount = view->profile->ofa,
	};
}

/* unknown: what is said of a profile that the instance has not. */
static nvmlReturn_t find(const char *function, nvmlGpuInstance_t of,
			 unsigned index, const void *out, nvmlReturn_t unknown,
			 struct instance_view *view,
			 struct mig_compute_profile *profile)
{
	nvmlReturn_t result = instance_enter(function, of, view);

	if (result != NVML_SUCCESS)
		return result;
	if (out == NULL || index >= NVML_COMPUTE_INSTANCE_PROFILES)
		return NVML_ERROR_INVALID_ARGUMENT;
	return mig_compute_profile(view->gpu, view->profile, index, profile) ?
		       NVML_SUCCESS :
		       unknown;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
	nvmlGpuInstance_t of, unsigned profile, unsigned engines,
	nvmlComputeInstanceProfileInfo_t *info)
{
	struct instance_view view;
	struct mig_compute_profile p;
	nvmlReturn_t result = find(__func__, of, profile, info,
				   NVML_ERROR_NOT_SUPPORTED, &view, &p);

	if (result == NVML_SUCCESS && engines != 0)
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*info = info_of(&view, &p);
	return result;
}

/* Version 3 is version 2 with capabilities behind. */
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t of,
							   unsigned profile,
							   unsigned engines,
							   void *info)
{
	struct instance_view view;
	struct mig_compute_profile p;
	nvmlComputeInstanceProfileInfo_v3_t *v3 = info;
	nvmlReturn_t result = find(__func__, of, profile, info,
				   NVML_ERROR_NOT_SUPPORTED, &view, &p);

	if (result != NVML_SUCCESS)
		return result;
	bool third = v3->version ==
		     NVML_VERSIONED(nvmlComputeInstanceProfileInfo_v3_t, 3);
	if (engines != 0 ||
	    (!third &&
	     v3->version !=
		     NVML_VERSIONED(nvmlComputeInstanceProfileInfo_v2_t, 2)))
		return NVML_ERROR_INVALID_ARGUMENT;
	v3->info = info_of(&view, &p);
	memset(v3->name, 0, sizeof(v3->name));
	snprintf(v3->name, sizeof(v3->name), "MIG %s", p.name);
	if (third)
		v3->capabilities =
			view.profile->graphics ? NVML_COMPUTE_INSTANCE_GFX : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
	nvmlGpuInstance_t of, unsigned id, nvmlPlacement_t *placements,
	unsigned *count)
{
	struct instance_view view;
	struct mig_compute_profile p;
	nvmlReturn_t result = find(__func__, of, id, count,
				   NVML_ERROR_INVALID_ARGUMENT, &view, &p);

	if (result != NVML_SUCCESS)
		return result;
	*count = p.instances;
	for (unsigned i = 0; placements != NULL && i < p.instances; i++)
		placements[i] = (nvmlPlacement_t){ p.starts[i], p.slices };
	return NVML_SUCCESS;
}

nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t of,
						   unsigned id, unsigned *count)
{
	struct instance_view view;
	struct mig_compute_profile p;
	nvmlReturn_t result = find(__func__, of, id, count,
				   NVML_ERROR_INVALID_ARGUMENT, &view, &p);

	if (result == NVML_SUCCESS)
		*count = mig_compute_capacity(view.instance, &p);
	return result;
}

static nvmlReturn_t give_handle(nvmlGpuInstance_t of, unsigned number,
				uint64_t serial,
				nvmlComputeInstance_t *instance)
{
	instance->handle = handle_of_compute(of.handle, number, serial);
	return instance->handle == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

static nvmlReturn_t create(const struct instance_view *view,
			   nvmlGpuInstance_t of, unsigned id, int start,
			   nvmlComputeInstance_t *instance)
{
	struct mig_made made;

	if (!may_divide())
		return NVML_ERROR_NO_PERMISSION;
	nvmlReturn_t result = (nvmlReturn_t)mig_create_compute(
		view->gpu, view->device->ledger_index, of.handle->number,
		of.handle->serial, id, start, &made);
	if (result != NVML_SUCCESS)
		return result;
	return give_handle(of, made.number, made.serial, instance);
}

nvmlReturn_t
nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t of, unsigned id,
				     nvmlComputeInstance_t *instance)
{
	struct instance_view view;
	struct mig_compute_profile p;
	nvmlReturn_t result = find(__func__, of, id, instance,
				   NVML_ERROR_NOT_SUPPORTED, &view, &p);

	return result == NVML_SUCCESS ?
		       create(&view, of, id, MIG_ANYWHERE, instance) :
		       result;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
	nvmlGpuInstance_t of, unsigned id, const nvmlPlacement_t *placement,
	nvmlComputeInstance_t *instance)
{
	struct instance_view view;
	struct mig_compute_profile p;
	nvmlReturn_t result = find(__func__, of, id, instance,
				   NVML_ERROR_NOT_SUPPORTED, &view, &p);

	if (result != NVML_SUCCESS)
		return result;
	if (placement == NULL || placement->size != p.slices ||
	    placement->start > INT32_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	return create(&view, of, id, (int)placement->start, instance);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
	struct instance_view view;
	nvmlReturn_t result = compute_enter(__func__, instance, &view);

	if (result != NVML_SUCCESS)
		return result;
	if (!may_divide())
		return NVML_ERROR_NO_PERMISSION;
	return (nvmlReturn_t)mig_destroy_compute(
		view.device->ledger_index, instance.handle->in->number,
		instance.handle->number, instance.handle->serial);
}

/* There is room for as many as the profile may have. */
nvmlReturn_t
nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t of, unsigned id,
				   nvmlComputeInstance_t *instances,
				   unsigned *count)
{
	struct instance_view view;
	struct mig_compute_profile p;
	nvmlReturn_t result = find(__func__, of, id, count,
				   NVML_ERROR_NOT_SUPPORTED, &view, &p);
	unsigned found = 0;

	if (result == NVML_SUCCESS && instances == NULL)
		result = NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; result == NVML_SUCCESS && i < MIG_COMPUTES; i++)
		if (view.instance->computes[i].serial != 0 &&
		    view.instance->computes[i].profile == id &&
		    sees_compute(view.gpu, of.handle->number, i))
			result = give_handle(of, i,
					     view.instance->computes[i].serial,
					     &instances[found++]);
	if (result == NVML_SUCCESS)
		*count = found;
	return result;
}

nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t of, unsigned number,
				      nvmlComputeInstance_t *instance)
{
	struct instance_view view;
	nvmlReturn_t result = instance_enter(__func__, of, &view);

	if (result != NVML_SUCCESS)
		return result;
	if (instance == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (number >= MIG_COMPUTES ||
	    view.instance->computes[number].serial == 0 ||
	    !sees_compute(view.gpu, of.handle->number, number))
		return NVML_ERROR_NOT_FOUND;
	return give_handle(of, number, view.instance->computes[number].serial,
			   instance);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance,
					   nvmlComputeInstanceInfo_t *info)
{
	struct instance_view view;
	nvmlReturn_t result = compute_enter(__func__, instance, &view);

	if (result != NVML_SUCCESS)
		return result;
	if (info == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlComputeInstanceInfo_t){
		.device = view.device,
		.gpuInstance = { instance.handle->in },
		.id = instance.handle->number,
		.profileId = view.compute->profile,
		.placement = { view.compute->start, view.compute->size },
	};
	return NVML_SUCCESS;
}
