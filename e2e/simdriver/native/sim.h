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

#define SIM_MAX_PROFILES 18 /* NVML_GPU_INSTANCE_PROFILE_COUNT */
#define SIM_MAX_STARTS 8

/* A size of partition that a card can be divided into: a MIG profile. */
struct sim_mig_profile {
	char name[32];	/* "1g.10gb+me" */
	unsigned index; /* NVML_GPU_INSTANCE_PROFILE_* */
	unsigned id;	/* what NVML calls its ID */
	unsigned slices, instances;
	uint64_t memory_mib;
	unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned p2p, graphics;
	unsigned size; /* in memory slices */
	unsigned start_count;
	unsigned starts[SIM_MAX_STARTS];
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
	unsigned profile_count;
	struct sim_mig_profile profiles[SIM_MAX_PROFILES];
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
/* A file that stands for the hardware, open for writing or only for reading. A
 * container may have the root read-only and yet the hardware itself where every
 * container has it, at /run/nvidia-sim. -1 on failure. */
int sim_state_open(const char *root, const char *name, bool *writable);

/* Capabilities of MIG: nodes /dev/nvidia-caps/nvidia-cap<minor>. The driver
 * numbers those of 15 instances of each card, and of 8 in each of them. */
#define SIM_CAP_CONFIG 1u
#define SIM_CAP_MONITOR 2u
bool sim_cap_visible(const char *root, unsigned minor);

static inline unsigned sim_cap_instance(unsigned gpu_minor, unsigned instance)
{
	return 3 + gpu_minor * 15 * 9 + instance * 9;
}

static inline unsigned sim_cap_compute(unsigned gpu_minor, unsigned instance,
				       unsigned compute)
{
	return sim_cap_instance(gpu_minor, instance) + 1 + compute;
}

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
