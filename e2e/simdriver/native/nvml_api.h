/*
 * The part of NVML that the simulated library offers: names, values and
 * signatures, written down from NVIDIA's public NVML API reference (r580).
 */
#ifndef SIM_NVML_API_H
#define SIM_NVML_API_H

#include <stddef.h>
#include <stdint.h>

#include "sim.h"

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_RESET_REQUIRED = 16,
	NVML_ERROR_IN_USE = 19,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

/* The types of events there can be: double-bit ECC errors, XIDs, and that a card is
 * not available any more or is to be recovered. */
#define NVML_EVENTS UINT64_C(0xc00a)
#define NVML_NO_INSTANCE 0xffffffffu
#define NVML_INIT_FLAG_NO_GPUS 1u
#define NVML_VERSIONED(type, version) \
	((unsigned)(sizeof(type) | (unsigned)(version) << 24))

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
	unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
	unsigned version;
	unsigned mode; /* 0: compute, 1: graphics, 2: MPS */
	unsigned numProcArrayEntries;
	nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;

typedef struct {
	nvmlDevice_t device;
	unsigned long long eventType, eventData;
	unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
	unsigned fieldId, scopeId;
	long long timestamp, latencyUsec;
	unsigned valueType, nvmlReturn;
	unsigned long long value; /* a union; the first bytes are the number */
} nvmlFieldValue_t;

typedef struct {
	unsigned pid;
	unsigned long long timeStamp;
	unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
	unsigned long long timeStamp;
	unsigned pid;
	unsigned smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
	unsigned version, processSamplesCount;
	unsigned long long lastSeenTimeStamp;
	nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;

_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32,
	       "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40,
	       "nvmlProcessUtilizationInfo_v1_t");
_Static_assert(sizeof(nvmlProcessesUtilizationInfo_t) == 24,
	       "nvmlProcessesUtilizationInfo_t");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "nvmlProcessInfo_v1_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "nvmlProcessDetail_v1_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");

#define NVML_API(name, ...) SIM_EXPORT nvmlReturn_t name(__VA_ARGS__)

SIM_EXPORT const char *nvmlErrorString(nvmlReturn_t result);
NVML_API(nvmlInit, void);
NVML_API(nvmlInit_v2, void);
NVML_API(nvmlInitWithFlags, unsigned flags);
NVML_API(nvmlShutdown, void);
NVML_API(nvmlSystemGetDriverVersion, char *text, unsigned length);
NVML_API(nvmlSystemGetNVMLVersion, char *text, unsigned length);
NVML_API(nvmlSystemGetCudaDriverVersion, int *version);
NVML_API(nvmlSystemGetCudaDriverVersion_v2, int *version);
NVML_API(nvmlSystemGetProcessName, unsigned pid, char *name, unsigned length);

NVML_API(nvmlDeviceGetCount, unsigned *count);
NVML_API(nvmlDeviceGetCount_v2, unsigned *count);
NVML_API(nvmlDeviceGetHandleByIndex, unsigned index, nvmlDevice_t *device);
NVML_API(nvmlDeviceGetHandleByIndex_v2, unsigned index, nvmlDevice_t *device);
NVML_API(nvmlDeviceGetHandleByUUID, const char *uuid, nvmlDevice_t *device);
NVML_API(nvmlDeviceGetHandleBySerial, const char *serial, nvmlDevice_t *device);
NVML_API(nvmlDeviceGetHandleByPciBusId_v2, const char *id,
	 nvmlDevice_t *device);
NVML_API(nvmlDeviceGetName, nvmlDevice_t device, char *text, unsigned length);
NVML_API(nvmlDeviceGetUUID, nvmlDevice_t device, char *text, unsigned length);
NVML_API(nvmlDeviceGetSerial, nvmlDevice_t device, char *text, unsigned length);
NVML_API(nvmlDeviceGetIndex, nvmlDevice_t device, unsigned *index);
NVML_API(nvmlDeviceGetMinorNumber, nvmlDevice_t device, unsigned *minor);
NVML_API(nvmlDeviceGetPciInfo_v3, nvmlDevice_t device, nvmlPciInfo_t *pci);
NVML_API(nvmlDeviceGetCudaComputeCapability, nvmlDevice_t device, int *major,
	 int *minor);
NVML_API(nvmlDeviceGetArchitecture, nvmlDevice_t device, unsigned *value);
NVML_API(nvmlDeviceGetBrand, nvmlDevice_t device, unsigned *value);
NVML_API(nvmlDeviceGetNumGpuCores, nvmlDevice_t device, unsigned *value);
NVML_API(nvmlDeviceGetMultiGpuBoard, nvmlDevice_t device, unsigned *value);
NVML_API(nvmlDeviceGetVirtualizationMode, nvmlDevice_t device,
	 unsigned *value);
NVML_API(nvmlDeviceGetComputeMode, nvmlDevice_t device, unsigned *value);
NVML_API(nvmlDeviceGetPersistenceMode, nvmlDevice_t device, unsigned *value);
NVML_API(nvmlDeviceGetUtilizationRates, nvmlDevice_t device,
	 nvmlUtilization_t *rates);
NVML_API(nvmlDeviceGetProcessUtilization, nvmlDevice_t device,
	 nvmlProcessUtilizationSample_t *samples, unsigned *count,
	 unsigned long long last_seen);
NVML_API(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t device,
	 nvmlProcessesUtilizationInfo_t *all);

NVML_API(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *memory);
NVML_API(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t device,
	 nvmlMemory_v2_t *memory);

#define NVML_PROCESS_API(name) \
	NVML_API(name, nvmlDevice_t device, unsigned *count, \
		 nvmlProcessInfo_v1_t *infos); \
	NVML_API(name##_v2, nvmlDevice_t device, unsigned *count, \
		 nvmlProcessInfo_t *infos); \
	NVML_API(name##_v3, nvmlDevice_t device, unsigned *count, \
		 nvmlProcessInfo_t *infos)
NVML_PROCESS_API(nvmlDeviceGetComputeRunningProcesses);
NVML_PROCESS_API(nvmlDeviceGetGraphicsRunningProcesses);
NVML_PROCESS_API(nvmlDeviceGetMPSComputeRunningProcesses);

NVML_API(nvmlDeviceGetRunningProcessDetailList, nvmlDevice_t device,
	 nvmlProcessDetailList_t *list);

NVML_API(nvmlDeviceGetFieldValues, nvmlDevice_t device, int count,
	 nvmlFieldValue_t *values);
NVML_API(nvmlDeviceGetRemappedRows, nvmlDevice_t device, unsigned *corrected,
	 unsigned *uncorrected, unsigned *pending, unsigned *failed);
NVML_API(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDevice_t device,
	 unsigned long long *reasons);

NVML_API(nvmlDeviceGetSupportedEventTypes, nvmlDevice_t device,
	 unsigned long long *types);
NVML_API(nvmlDeviceRegisterEvents, nvmlDevice_t device,
	 unsigned long long types, nvmlEventSet_t set);
NVML_API(nvmlEventSetCreate, nvmlEventSet_t *set);
NVML_API(nvmlEventSetFree, nvmlEventSet_t set);
NVML_API(nvmlEventSetWait, nvmlEventSet_t set, nvmlEventData_t *data,
	 unsigned timeout);
NVML_API(nvmlEventSetWait_v2, nvmlEventSet_t set, nvmlEventData_t *data,
	 unsigned timeout);

#endif
