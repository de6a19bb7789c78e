/* What the files of libnvidia-ml share: the state of this process. */
#ifndef SIM_NVML_STATE_H
#define SIM_NVML_STATE_H

#include "faults.h"
#include "ledger.h"
#include "nvml_api.h"

struct nvmlComputeInstance_st;

/* A card, or a MIG device of one. */
struct nvmlDevice_st {
	const struct sim_gpu *gpu;
	unsigned ledger_index; /* the card's place in the description */
	unsigned index;	       /* among those that this process sees */
	struct nvmlComputeInstance_st *compute; /* NULL: a card */
};

struct nvml_process {
	unsigned references; /* nvmlInit calls not yet shut down */
	char root[SIM_PATH_MAX];
	struct sim_hardware hardware;
	unsigned device_count;
	struct nvmlDevice_st devices[SIM_MAX_GPUS];
};

extern struct nvml_process nvml;

/* What a call must return before it does anything: that it is too early, or
 * the fault that a test asked for. */
nvmlReturn_t nvml_enter(const char *function);
/* The same for a call on a card, which may be no card, or lost. */
nvmlReturn_t nvml_enter_device(const char *function, nvmlDevice_t device);
/* And on a card or a MIG device, which may be gone. */
nvmlReturn_t nvml_enter_any(const char *function, nvmlDevice_t device);
bool nvml_is_mig_device(nvmlDevice_t device);
/* Whether a card is in MIG mode. */
bool nvml_divided(nvmlDevice_t device);
nvmlReturn_t nvml_text(const char *from, char *to, unsigned length);

/* nvml_mig.c: what is told of MIG devices by calls that cards have too. */
unsigned mig_device_index(nvmlDevice_t device);
nvmlReturn_t mig_device_name(nvmlDevice_t device, char *text, unsigned length);
nvmlReturn_t mig_device_uuid(nvmlDevice_t device, char *text, unsigned length);
uint64_t mig_device_memory(nvmlDevice_t device); /* bytes */
nvmlReturn_t mig_device_of_uuid(nvmlDevice_t device, const char *uuid,
				nvmlDevice_t *mig);
/* The serials by which the ledger knows it. */
uint64_t mig_device_instance(nvmlDevice_t device);
uint64_t mig_device_compute(nvmlDevice_t device);

#define ENTER() \
	do { \
		nvmlReturn_t entered = nvml_enter(__func__); \
		if (entered != NVML_SUCCESS) \
			return entered; \
	} while (0)

#define ENTER_DEVICE(device, out) ENTER_BY(nvml_enter_device, device, out)
#define ENTER_ANY(device, out) ENTER_BY(nvml_enter_any, device, out)

#define ENTER_BY(enter, device, out) \
	do { \
		nvmlReturn_t entered = enter(__func__, device); \
		if (entered != NVML_SUCCESS) \
			return entered; \
		if ((out) == NULL) \
			return NVML_ERROR_INVALID_ARGUMENT; \
	} while (0)

#endif
