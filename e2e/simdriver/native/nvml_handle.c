#include "nvml_handle.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlGpuInstance_st *instances;
static struct nvmlComputeInstance_st *computes;

struct nvmlGpuInstance_st *handle_of_instance(nvmlDevice_t device,
					      unsigned number, uint64_t serial)
{
	struct nvmlGpuInstance_st *at;

	pthread_mutex_lock(&lock);
	for (at = instances; at != NULL && at->serial != serial;)
		at = at->next;
	if (at == NULL && (at = calloc(1, sizeof(*at))) != NULL) {
		*at = (struct nvmlGpuInstance_st){ instances, device, number,
						   serial };
		instances = at;
	}
	pthread_mutex_unlock(&lock);
	return at;
}

struct nvmlComputeInstance_st *
handle_of_compute(struct nvmlGpuInstance_st *in, unsigned number,
		  uint64_t serial)
{
	struct nvmlComputeInstance_st *at;

	pthread_mutex_lock(&lock);
	for (at = computes; at != NULL && at->serial != serial;)
		at = at->next;
	if (at == NULL && (at = calloc(1, sizeof(*at))) != NULL) {
		*at = (struct nvmlComputeInstance_st){ computes, in, number,
						       serial, *in->device };
		at->device.compute = at;
		computes = at;
	}
	pthread_mutex_unlock(&lock);
	return at;
}

void handles_drop(void)
{
	pthread_mutex_lock(&lock);
	for (void *next; instances != NULL; instances = next) {
		next = instances->next;
		free(instances);
	}
	for (void *next; computes != NULL; computes = next) {
		next = computes->next;
		free(computes);
	}
	pthread_mutex_unlock(&lock);
}

static bool known_instance(const struct nvmlGpuInstance_st *handle)
{
	const struct nvmlGpuInstance_st *at;

	pthread_mutex_lock(&lock);
	for (at = instances; at != NULL && at != handle;)
		at = at->next;
	pthread_mutex_unlock(&lock);
	return at != NULL;
}

static bool known_compute(const struct nvmlComputeInstance_st *handle)
{
	const struct nvmlComputeInstance_st *at;

	pthread_mutex_lock(&lock);
	for (at = computes; at != NULL && at != handle;)
		at = at->next;
	pthread_mutex_unlock(&lock);
	return at != NULL;
}

bool nvml_is_mig_device(nvmlDevice_t device)
{
	const struct nvmlComputeInstance_st *at;

	pthread_mutex_lock(&lock);
	for (at = computes; at != NULL && &at->device != device;)
		at = at->next;
	pthread_mutex_unlock(&lock);
	return at != NULL;
}

static nvmlReturn_t look_at(const struct nvmlGpuInstance_st *handle,
			    struct instance_view *view)
{
	unsigned index = handle->device->ledger_index;

	view->device = handle->device;
	view->gpu = handle->device->gpu;
	view->compute = NULL;
	if (fault_gpu_lost(nvml.root, index))
		return NVML_ERROR_GPU_IS_LOST;
	mig_open(nvml.root);
	mig_read(index, &view->card);
	view->instance = &view->card.instances[handle->number];
	view->profile = mig_profile_at(view->gpu, view->instance->profile);
	return view->instance->serial == handle->serial &&
			       view->profile != NULL ?
		       NVML_SUCCESS :
		       NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t look_at_compute(const struct nvmlComputeInstance_st *handle,
				    struct instance_view *view)
{
	nvmlReturn_t result = look_at(handle->in, view);

	if (result != NVML_SUCCESS)
		return result;
	view->compute = &view->instance->computes[handle->number];
	return view->compute->serial == handle->serial &&
			       mig_compute_profile(view->gpu, view->profile,
						   view->compute->profile,
						   &view->compute_profile) ?
		       NVML_SUCCESS :
		       NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t instance_enter(const char *function, nvmlGpuInstance_t instance,
			    struct instance_view *view)
{
	nvmlReturn_t result = nvml_enter(function);

	if (result != NVML_SUCCESS)
		return result;
	return known_instance(instance.handle) ?
		       look_at(instance.handle, view) :
		       NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t compute_enter(const char *function, nvmlComputeInstance_t compute,
			   struct instance_view *view)
{
	nvmlReturn_t result = nvml_enter(function);

	if (result != NVML_SUCCESS)
		return result;
	return known_compute(compute.handle) ?
		       look_at_compute(compute.handle, view) :
		       NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t mig_device_enter(const char *function, nvmlDevice_t device,
			      struct instance_view *view)
{
	nvmlReturn_t result = nvml_enter(function);

	if (result != NVML_SUCCESS)
		return result;
	if (nvml_is_mig_device(device))
		return look_at_compute(device->compute, view);
	result = nvml_enter_device(function, device);
	return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t mig_device_view(nvmlDevice_t device, struct instance_view *view)
{
	return look_at_compute(device->compute, view);
}

nvmlReturn_t nvml_enter_any(const char *function, nvmlDevice_t device)
{
	struct instance_view view;

	if (!nvml_is_mig_device(device))
		return nvml_enter_device(function, device);
	return mig_device_enter(function, device, &view);
}

nvmlReturn_t card_enter(const char *function, nvmlDevice_t device, bool divided,
			struct mig_card *card)
{
	nvmlReturn_t result = nvml_enter_device(function, device);

	if (result != NVML_SUCCESS)
		return result;
	if (device->gpu->profile_count == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	mig_open(nvml.root);
	mig_read(device->ledger_index, card);
	return divided && !card->current ? NVML_ERROR_NOT_SUPPORTED :
					   NVML_SUCCESS;
}

/* The manual asks for root, and the driver for the capability as well. */
bool may_divide(void)
{
	return geteuid() == 0 && sim_cap_visible(nvml.root, SIM_CAP_CONFIG) &&
	       mig_open(nvml.root) && ledger_open(nvml.root);
}

static bool sees_all(void)
{
	return sim_cap_visible(nvml.root, SIM_CAP_MONITOR) ||
	       sim_cap_visible(nvml.root, SIM_CAP_CONFIG);
}

bool sees_instance(const struct sim_gpu *gpu, unsigned number)
{
	return sees_all() ||
	       sim_cap_visible(nvml.root, sim_cap_instance(gpu->minor, number));
}

bool sees_compute(const struct sim_gpu *gpu, unsigned instance, unsigned number)
{
	return sees_instance(gpu, instance) &&
	       (sees_all() ||
		sim_cap_visible(nvml.root, sim_cap_compute(gpu->minor, instance,
							   number)));
}
