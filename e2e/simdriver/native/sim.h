/*
 * What both simulated libraries share: where the driver root is, what hardware
 * it describes, and which of that hardware this process may see.
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAX_GPUS 16
#define SIM_BLOCK (UINT64_C(2) << 20) /* what the hardware gives out: 2 MiB */
#define SIM_PATH_MAX 4096

#define SIM_EXPORT __attribute__((visibility("default")))

enum sim_virtualization {
	SIM_VIRT_NONE = 0,
	SIM_VIRT_PASSTHROUGH = 1,
	SIM_VIRT_VGPU = 2,
};

/* One card of the description. */
struct sim_gpu {
	char name[96];
	char uuid[48]; /* "GPU-" and a UUID */
	char serial[32];
	char pci_bus_id[32]; /* "00000000:0F:00.0", NVML's long form */
	unsigned pci_domain, pci_bus, pci_device;
	uint32_t pci_device_id, pci_subsystem_id;
	unsigned minor; /* of /dev/nvidia<minor> */
	uint64_t memory_total, memory_reserved;
	uint64_t context_bytes; /* what a context costs */
	uint64_t slice_ns; /* how long a process has the card at a time */
	unsigned cc_major, cc_minor;
	unsigned architecture, brand; /* NVML's numbers */
	unsigned multiprocessors, cores;
	unsigned mig_max; /* MIG devices it can hold; 0: not MIG capable */
	unsigned virtualization;
};

struct sim_hardware {
	char driver_version[32];
	char nvml_version[32];
	unsigned cuda_version; /* 13000 is 13.0 */
	unsigned gpu_count;
	struct sim_gpu gpus[SIM_MAX_GPUS];
};

/* root.c. The root is found from the path of the library that holds address;
 * "" stands for the root of the file system. */
bool sim_root_of(const void *address, char root[SIM_PATH_MAX]);
bool sim_path(char out[SIM_PATH_MAX], const char *root, const char *relative);
bool sim_gpu_visible(const char *root, const struct sim_gpu *gpu);

/* hardware.c. False when the file is missing or not understood. */
bool sim_hardware_load(const char *root, struct sim_hardware *hardware);

/* What a program may have of the card, in whole blocks. */
static inline uint64_t sim_gpu_capacity(const struct sim_gpu *gpu)
{
	uint64_t usable = gpu->memory_total - gpu->memory_reserved;

	return usable - usable % SIM_BLOCK;
}

static inline uint64_t sim_round_up(uint64_t n, uint64_t step)
{
	return (n + step - 1) / step * step;
}

#endif
