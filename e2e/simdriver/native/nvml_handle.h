/*
 * Handles of instances and of MIG devices. One is made when it is first asked
 * for, is the same each time, and lives until the library is begun anew; what it
 * stands for may be gone by then, which its serial tells.
 */
#ifndef SIM_NVML_HANDLE_H
#define SIM_NVML_HANDLE_H

#include "mig.h"
#include "nvml_mig_api.h"
#include "nvml_state.h"

struct nvmlGpuInstance_st {
	struct nvmlGpuInstance_st *next;
	nvmlDevice_t device;
	unsigned number;
	uint64_t serial;
};

/* And its MIG device, whose parent is the card. */
struct nvmlComputeInstance_st {
	struct nvmlComputeInstance_st *next;
	struct nvmlGpuInstance_st *in;
	unsigned number;
	uint64_t serial;
	struct nvmlDevice_st device;
};

/* NULL when there is no memory. */
struct nvmlGpuInstance_st *handle_of_instance(nvmlDevice_t device,
					      unsigned number, uint64_t serial);
struct nvmlComputeInstance_st *
handle_of_compute(struct nvmlGpuInstance_st *in, unsigned number,
		  uint64_t serial);
void handles_drop(void);

/* What a handle stands for, as it is now. */
struct instance_view {
	const struct sim_gpu *gpu;
	nvmlDevice_t device;
	struct mig_card card;
	const struct mig_instance *instance;
	const struct sim_mig_profile *profile;
	const struct mig_compute *compute; /* of a compute instance */
	struct mig_compute_profile compute_profile;
};

/* The beginning of calls on instances: NVML_SUCCESS, or what they must return. */
nvmlReturn_t instance_enter(const char *function, nvmlGpuInstance_t instance,
			    struct instance_view *view);
nvmlReturn_t compute_enter(const char *function, nvmlComputeInstance_t compute,
			   struct instance_view *view);
/* The same for a MIG device; a card is NVML_ERROR_NOT_SUPPORTED. */
nvmlReturn_t mig_device_enter(const char *function, nvmlDevice_t device,
			      struct instance_view *view);
/* Without a look at faults. */
nvmlReturn_t mig_device_view(nvmlDevice_t device, struct instance_view *view);
/* And for a card; divided: that must be in MIG mode. */
nvmlReturn_t card_enter(const char *function, nvmlDevice_t device, bool divided,
			struct mig_card *card);

/* Whether this process may change how cards are divided. */
bool may_divide(void);
/* Whether it may know of an instance: it has its capability, or one that is good
 * for all. */
bool sees_instance(const struct sim_gpu *gpu, unsigned number);
bool sees_compute(const struct sim_gpu *gpu, unsigned instance,
		  unsigned number);

#endif
