/* MIG mode, and the MIG devices of a card. */
#include "nvml_handle.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current,
				  unsigned *pending)
{
	struct mig_card card;
	nvmlReturn_t result = card_enter(__func__, device, false, &card);

	if (result != NVML_SUCCESS)
		return result;
	if (current == NULL || pending == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = card.current;
	*pending = card.pending;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode,
				  nvmlReturn_t *activation)
{
	struct mig_card card;
	nvmlReturn_t result = card_enter(__func__, device, false, &card);
	int status = MIG_OK;

	if (result != NVML_SUCCESS)
		return result;
	if (activation == NULL || mode > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!may_divide())
		return NVML_ERROR_NO_PERMISSION;
	result = (nvmlReturn_t)mig_set_mode(device->gpu, device->ledger_index,
					    mode, &status);
	*activation = (nvmlReturn_t)status;
	return result;
}

/* The manual says 0 while MIG is disabled; drivers tell what the card can do. */
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device,
					    unsigned *count)
{
	ENTER_DEVICE(device, count);
	*count = device->gpu->mig_max;
	return NVML_SUCCESS;
}

/* The compute instances that this process sees, one after the other. False: that
 * was the last one. */
static bool next_compute(nvmlDevice_t device, const struct mig_card *card,
			 unsigned *instance, unsigned *compute)
{
	for (; *instance < MIG_INSTANCES; (*instance)++, *compute = 0) {
		const struct mig_instance *in = &card->instances[*instance];
		for (; in->serial != 0 && *compute < MIG_COMPUTES; (*compute)++)
			if (in->computes[*compute].serial != 0 &&
			    sees_compute(device->gpu, *instance, *compute))
				return true;
	}
	return false;
}

static nvmlReturn_t mig_device(nvmlDevice_t device, const struct mig_card *card,
			       unsigned instance, unsigned compute,
			       nvmlDevice_t *mig)
{
	const struct mig_instance *in = &card->instances[instance];
	struct nvmlGpuInstance_st *parent =
		handle_of_instance(device, instance, in->serial);
	struct nvmlComputeInstance_st *handle =
		parent == NULL ? NULL :
				 handle_of_compute(parent, compute,
						   in->computes[compute].serial);

	if (handle == NULL)
		return NVML_ERROR_MEMORY;
	*mig = &handle->device;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device,
						 unsigned index,
						 nvmlDevice_t *mig)
{
	struct mig_card card;
	unsigned instance = 0, compute = 0;
	nvmlReturn_t result = card_enter(__func__, device, false, &card);

	if (result != NVML_SUCCESS)
		return result;
	if (mig == NULL || index >= device->gpu->mig_max)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (; next_compute(device, &card, &instance, &compute); compute++)
		if (index-- == 0)
			return mig_device(device, &card, instance, compute,
					  mig);
	return NVML_ERROR_NOT_FOUND;
}

/* The number by which nvmlDeviceGetMigDeviceHandleByIndex finds it. */
unsigned mig_device_index(nvmlDevice_t device)
{
	struct mig_card card;
	unsigned instance = 0, compute = 0, index = 0;
	const struct nvmlComputeInstance_st *own = device->compute;

	mig_read(device->ledger_index, &card);
	for (; next_compute(device, &card, &instance, &compute);
	     compute++, index++)
		if (card.instances[instance].computes[compute].serial ==
		    own->serial)
			break;
	return index;
}

nvmlReturn_t mig_device_of_uuid(nvmlDevice_t device, const char *uuid,
				nvmlDevice_t *mig)
{
	struct mig_card card;
	unsigned instance = 0, compute = 0;
	char text[MIG_UUID_TEXT];

	mig_open(nvml.root);
	mig_read(device->ledger_index, &card);
	for (; next_compute(device, &card, &instance, &compute); compute++) {
		mig_uuid_text(card.instances[instance].computes[compute].uuid,
			      text);
		if (strcmp(text, uuid) == 0)
			return mig_device(device, &card, instance, compute,
					  mig);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
	ENTER_ANY(device, is_mig);
	*is_mig = device->compute != NULL;
	return NVML_SUCCESS;
}

#define ENTER_MIG(device, view, out) \
	do { \
		nvmlReturn_t entered = mig_device_enter(__func__, device, view); \
		if (entered != NVML_SUCCESS) \
			return entered; \
		if ((out) == NULL) \
			return NVML_ERROR_INVALID_ARGUMENT; \
	} while (0)

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
	struct instance_view view;

	ENTER_MIG(device, &view, id);
	*id = device->compute->in->number;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
	struct instance_view view;

	ENTER_MIG(device, &view, id);
	*id = device->compute->number;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device,
							  nvmlDevice_t *parent)
{
	struct instance_view view;

	ENTER_MIG(device, &view, parent);
	*parent = view.device;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device,
					nvmlDeviceAttributes_t *attributes)
{
	struct instance_view view;

	ENTER_MIG(device, &view, attributes);
	*attributes = (nvmlDeviceAttributes_t){
		.multiprocessorCount = view.compute_profile.multiprocessors,
		.sharedCopyEngineCount = view.profile->copy_engines,
		.sharedDecoderCount = view.profile->decoders,
		.sharedEncoderCount = view.profile->encoders,
		.sharedJpegCount = view.profile->jpeg,
		.sharedOfaCount = view.profile->ofa,
		.gpuInstanceSliceCount = view.profile->slices,
		.computeInstanceSliceCount = view.compute_profile.slices,
		.memorySizeMB = view.profile->memory_mib,
	};
	return NVML_SUCCESS;
}

nvmlReturn_t mig_device_name(nvmlDevice_t device, char *text, unsigned length)
{
	struct instance_view view;
	char name[sizeof(view.gpu->name) + sizeof(view.compute_profile.name) + 8];

	if (mig_device_view(device, &view) != NVML_SUCCESS)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(name, sizeof(name), "%s MIG %s", view.gpu->name,
		 view.compute_profile.name);
	return nvml_text(name, text, length);
}

nvmlReturn_t mig_device_uuid(nvmlDevice_t device, char *text, unsigned length)
{
	struct instance_view view;
	char uuid[MIG_UUID_TEXT];

	if (mig_device_view(device, &view) != NVML_SUCCESS)
		return NVML_ERROR_INVALID_ARGUMENT;
	mig_uuid_text(view.compute->uuid, uuid);
	return nvml_text(uuid, text, length);
}

uint64_t mig_device_memory(nvmlDevice_t device)
{
	struct instance_view view;

	return mig_device_view(device, &view) == NVML_SUCCESS ?
		       view.profile->memory_mib << 20 :
		       0;
}

uint64_t mig_device_instance(nvmlDevice_t device)
{
	return device->compute == NULL ? 0 : device->compute->in->serial;
}

uint64_t mig_device_compute(nvmlDevice_t device)
{
	return device->compute == NULL ? 0 : device->compute->serial;
}

bool nvml_divided(nvmlDevice_t device)
{
	struct mig_card card;

	mig_open(nvml.root);
	mig_read(device->ledger_index, &card);
	return card.current != 0;
}
