/*
 * What these cards do not have, or nobody has needed yet. The names are there
 * because a program that binds lazily, as Go's bindings do, dies when it calls a
 * name that is not. Arguments do not matter: the calling conventions of x86-64
 * and aarch64 let the callee ignore them.
 */
#include "nvml_state.h"

#define UNSUPPORTED(name) \
	SIM_EXPORT nvmlReturn_t name(void); \
	nvmlReturn_t name(void) \
	{ \
		ENTER(); \
		return NVML_ERROR_NOT_SUPPORTED; \
	} \
	_Static_assert(1, #name)

UNSUPPORTED(nvmlDeviceGetAddressingMode);
UNSUPPORTED(nvmlDeviceGetBoardId);
UNSUPPORTED(nvmlDeviceGetBoardPartNumber);
UNSUPPORTED(nvmlDeviceGetClockInfo);
UNSUPPORTED(nvmlDeviceGetCpuAffinity);
UNSUPPORTED(nvmlDeviceGetEccMode);
UNSUPPORTED(nvmlDeviceGetEncoderUtilization);
UNSUPPORTED(nvmlDeviceGetDecoderUtilization);
UNSUPPORTED(nvmlDeviceGetGpuFabricInfo);
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV);
UNSUPPORTED(nvmlDeviceGetGspFirmwareVersion);
UNSUPPORTED(nvmlDeviceGetMemoryAffinity);
UNSUPPORTED(nvmlDeviceGetMemoryErrorCounter);
UNSUPPORTED(nvmlDeviceGetNumaNodeId);
UNSUPPORTED(nvmlDeviceGetNvLinkState);
UNSUPPORTED(nvmlDeviceGetPerformanceState);
UNSUPPORTED(nvmlDeviceGetPowerManagementLimit);
UNSUPPORTED(nvmlDeviceGetPowerUsage);
UNSUPPORTED(nvmlDeviceGetTemperature);
UNSUPPORTED(nvmlDeviceGetTopologyCommonAncestor);
UNSUPPORTED(nvmlDeviceGetTotalEccErrors);
UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption);
UNSUPPORTED(nvmlDeviceGetVbiosVersion);
