/*
 * The part of NVML about MIG, written down from NVIDIA's public NVML API
 * reference (r580), as nvml_api.h the rest.
 */
#ifndef SIM_NVML_MIG_API_H
#define SIM_NVML_MIG_API_H

#include "nvml_api.h"

#define NVML_NAME_SIZE 96 /* NVML_DEVICE_NAME_V2_BUFFER_SIZE */
#define NVML_GPU_INSTANCE_PROFILES 0x12u
#define NVML_COMPUTE_INSTANCE_PROFILES 0x9u
#define NVML_GPU_INSTANCE_P2P 1u
#define NVML_GPU_INSTANCE_GFX 2u
#define NVML_COMPUTE_INSTANCE_GFX 1u

/* Handles are passed by value, in the register that a pointer would have. */
typedef struct {
	struct nvmlGpuInstance_st *handle;
} nvmlGpuInstance_t;

typedef struct {
	struct nvmlComputeInstance_st *handle;
} nvmlComputeInstance_t;

typedef struct {
	unsigned start, size;
} nvmlPlacement_t;

typedef struct {
	unsigned id, isP2pSupported, sliceCount, instanceCount,
		multiprocessorCount, copyEngineCount, decoderCount,
		encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
	unsigned version, id, isP2pSupported, sliceCount, instanceCount,
		multiprocessorCount, copyEngineCount, decoderCount,
		encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[NVML_NAME_SIZE];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
	unsigned version, id, sliceCount, instanceCount, multiprocessorCount,
		copyEngineCount, decoderCount, encoderCount, jpegCount,
		ofaCount;
	unsigned long long memorySizeMB;
	char name[NVML_NAME_SIZE];
	unsigned capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
	nvmlDevice_t device;
	unsigned id, profileId;
	nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
	unsigned id, sliceCount, instanceCount, multiprocessorCount,
		sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount,
		sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
	unsigned version;
	nvmlComputeInstanceProfileInfo_t info;
	char name[NVML_NAME_SIZE];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
	unsigned version;
	nvmlComputeInstanceProfileInfo_t info;
	char name[NVML_NAME_SIZE];
	unsigned capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;

typedef struct {
	nvmlDevice_t device;
	nvmlGpuInstance_t gpuInstance;
	unsigned id, profileId;
	nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
	unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
		sharedEncoderCount, sharedJpegCount, sharedOfaCount,
		gpuInstanceSliceCount, computeInstanceSliceCount;
	unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48, "v1");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152, "v2");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v3_t) == 152, "v3");
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "nvmlGpuInstanceInfo_t");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_t) == 36, "v1");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136, "v2");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v3_t) == 140, "v3");
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32,
	       "nvmlComputeInstanceInfo_t");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "nvmlDeviceAttributes_t");

/* Of a card. */
NVML_API(nvmlDeviceSetMigMode, nvmlDevice_t device, unsigned mode,
	 nvmlReturn_t *activation);
NVML_API(nvmlDeviceGetMigMode, nvmlDevice_t device, unsigned *current,
	 unsigned *pending);
NVML_API(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice_t device, unsigned *count);
NVML_API(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t device,
	 unsigned index, nvmlDevice_t *mig);

/* GPU instances. */
NVML_API(nvmlDeviceGetGpuInstanceProfileInfo, nvmlDevice_t device,
	 unsigned profile, nvmlGpuInstanceProfileInfo_t *info);
NVML_API(nvmlDeviceGetGpuInstanceProfileInfoV, nvmlDevice_t device,
	 unsigned profile, void *info);
NVML_API(nvmlDeviceGetGpuInstanceProfileInfoByIdV, nvmlDevice_t device,
	 unsigned id, void *info);
NVML_API(nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDevice_t device,
	 unsigned id, nvmlPlacement_t *placements, unsigned *count);
NVML_API(nvmlDeviceGetGpuInstancePossiblePlacements_v2, nvmlDevice_t device,
	 unsigned id, nvmlPlacement_t *placements, unsigned *count);
NVML_API(nvmlDeviceGetGpuInstanceRemainingCapacity, nvmlDevice_t device,
	 unsigned id, unsigned *count);
NVML_API(nvmlDeviceCreateGpuInstance, nvmlDevice_t device, unsigned id,
	 nvmlGpuInstance_t *instance);
NVML_API(nvmlDeviceCreateGpuInstanceWithPlacement, nvmlDevice_t device,
	 unsigned id, const nvmlPlacement_t *placement,
	 nvmlGpuInstance_t *instance);
NVML_API(nvmlGpuInstanceDestroy, nvmlGpuInstance_t instance);
NVML_API(nvmlDeviceGetGpuInstances, nvmlDevice_t device, unsigned id,
	 nvmlGpuInstance_t *instances, unsigned *count);
NVML_API(nvmlDeviceGetGpuInstanceById, nvmlDevice_t device, unsigned number,
	 nvmlGpuInstance_t *instance);
NVML_API(nvmlGpuInstanceGetInfo, nvmlGpuInstance_t instance,
	 nvmlGpuInstanceInfo_t *info);

/* Compute instances. */
NVML_API(nvmlGpuInstanceGetComputeInstanceProfileInfo, nvmlGpuInstance_t of,
	 unsigned profile, unsigned engines,
	 nvmlComputeInstanceProfileInfo_t *info);
NVML_API(nvmlGpuInstanceGetComputeInstanceProfileInfoV, nvmlGpuInstance_t of,
	 unsigned profile, unsigned engines, void *info);
NVML_API(nvmlGpuInstanceGetComputeInstancePossiblePlacements,
	 nvmlGpuInstance_t of, unsigned id, nvmlPlacement_t *placements,
	 unsigned *count);
NVML_API(nvmlGpuInstanceGetComputeInstanceRemainingCapacity,
	 nvmlGpuInstance_t of, unsigned id, unsigned *count);
NVML_API(nvmlGpuInstanceCreateComputeInstance, nvmlGpuInstance_t of,
	 unsigned id, nvmlComputeInstance_t *instance);
NVML_API(nvmlGpuInstanceCreateComputeInstanceWithPlacement,
	 nvmlGpuInstance_t of, unsigned id, const nvmlPlacement_t *placement,
	 nvmlComputeInstance_t *instance);
NVML_API(nvmlComputeInstanceDestroy, nvmlComputeInstance_t instance);
NVML_API(nvmlGpuInstanceGetComputeInstances, nvmlGpuInstance_t of, unsigned id,
	 nvmlComputeInstance_t *instances, unsigned *count);
NVML_API(nvmlGpuInstanceGetComputeInstanceById, nvmlGpuInstance_t of,
	 unsigned number, nvmlComputeInstance_t *instance);
NVML_API(nvmlComputeInstanceGetInfo_v2, nvmlComputeInstance_t instance,
	 nvmlComputeInstanceInfo_t *info);

/* MIG devices. */
NVML_API(nvmlDeviceIsMigDeviceHandle, nvmlDevice_t device, unsigned *is_mig);
NVML_API(nvmlDeviceGetGpuInstanceId, nvmlDevice_t device, unsigned *id);
NVML_API(nvmlDeviceGetComputeInstanceId, nvmlDevice_t device, unsigned *id);
NVML_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t device,
	 nvmlDevice_t *parent);
NVML_API(nvmlDeviceGetAttributes_v2, nvmlDevice_t device,
	 nvmlDeviceAttributes_t *attributes);

#endif
