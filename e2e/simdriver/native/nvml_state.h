/* What the files of libnvidia-ml share: the state of this process. */
#ifndef SIM_NVML_STATE_H
#define SIM_NVML_STATE_H

#include "faults.h"
#include "ledger.h"
#include "nvml_api.h"

struct nvmlDevice_st {
	const struct sim_gpu *gpu;
	unsigned ledger_index; /* the card's place in the description */
	unsigned index;	       /* among those that this process sees */
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
/* The same for a call on a device, which may be no device, or lost. */
nvmlReturn_t nvml_enter_device(const char *function, nvmlDevice_t device);
nvmlReturn_t nvml_text(const char *from, char *to, unsigned length);

#define ENTER() \
	do { \
		nvmlReturn_t entered = nvml_enter(__func__); \
		if (entered != NVML_SUCCESS) \
			return entered; \
	} while (0)

#define ENTER_DEVICE(device, out) \
	do { \
		nvmlReturn_t entered = nvml_enter_device(__func__, device); \
		if (entered != NVML_SUCCESS) \
			return entered; \
		if ((out) == NULL) \
			return NVML_ERROR_INVALID_ARGUMENT; \
	} while (0)

#endif
