/*
 * Every function of the drivers that the library knows: those it wraps, and
 * those it only calls. All else reaches the driver untouched.
 *
 * AQ_WRAPPED(name, base, since, stream): base is what cuGetProcAddress calls
 * it, since the first CUDA version for which base means this name, stream the
 * flag of its stream semantics. since 0: reachable by its exported name only.
 * The list is sorted by name, for the binary search of lookup.c.
 */
#ifndef AQ_FUNCTIONS_H
#define AQ_FUNCTIONS_H

#include <stdbool.h>

#include "cuda_api.h"
#include "nvml_api.h"

#define AQ_LEGACY CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define AQ_PTSZ CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

#define AQ_WRAPPED_CUDA(X)                                                     \
	X(cuArray3DCreate, "cuArray3DCreate", 0, AQ_LEGACY)                    \
	X(cuArray3DCreate_v2, "cuArray3DCreate", 3020, AQ_LEGACY)              \
	X(cuArrayCreate, "cuArrayCreate", 0, AQ_LEGACY)                        \
	X(cuArrayCreate_v2, "cuArrayCreate", 3020, AQ_LEGACY)                  \
	X(cuArrayDestroy, "cuArrayDestroy", 2000, AQ_LEGACY)                   \
	X(cuCtxCreate, "cuCtxCreate", 0, AQ_LEGACY)                            \
	X(cuCtxCreate_v2, "cuCtxCreate", 3020, AQ_LEGACY)                      \
	X(cuCtxCreate_v3, "cuCtxCreate", 11040, AQ_LEGACY)                     \
	X(cuCtxCreate_v4, "cuCtxCreate", 12050, AQ_LEGACY)                     \
	X(cuCtxDestroy, "cuCtxDestroy", 0, AQ_LEGACY)                          \
	X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, AQ_LEGACY)                    \
	X(cuCtxSetLimit, "cuCtxSetLimit", 3010, AQ_LEGACY)                     \
	X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, AQ_LEGACY)      \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 0,           \
	  AQ_LEGACY)                                                           \
	X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000,    \
	  AQ_LEGACY)                                                           \
	X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 0, AQ_LEGACY)    \
	X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000,        \
	  AQ_LEGACY)                                                           \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000,          \
	  AQ_LEGACY)                                                           \
	X(cuDeviceTotalMem, "cuDeviceTotalMem", 0, AQ_LEGACY)                  \
	X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, AQ_LEGACY)            \
	X(cuGetProcAddress, "cuGetProcAddress", 11030, AQ_LEGACY)              \
	X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, AQ_LEGACY)           \
	X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, AQ_LEGACY)          \
	X(cuGraphInstantiate, "cuGraphInstantiate", 0, AQ_LEGACY)              \
	X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040,   \
	  AQ_LEGACY)                                                           \
	X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, \
	  AQ_LEGACY)                                                           \
	X(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams",   \
	  12000, AQ_PTSZ)                                                      \
	X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, AQ_LEGACY)       \
	X(cuGraphLaunch, "cuGraphLaunch", 10000, AQ_LEGACY)                    \
	X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, AQ_PTSZ)                 \
	X(cuGraphUpload, "cuGraphUpload", 11010, AQ_LEGACY)                    \
	X(cuGraphUpload_ptsz, "cuGraphUpload", 11010, AQ_PTSZ)                 \
	X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, AQ_LEGACY)              \
	X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, AQ_LEGACY)            \
	X(cuInit, "cuInit", 2000, AQ_LEGACY)                                   \
	X(cuLaunch, "cuLaunch", 2000, AQ_LEGACY)                               \
	X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000,        \
	  AQ_LEGACY)                                                           \
	X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice",\
	  9000, AQ_LEGACY)                                                     \
	X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000,   \
	  AQ_PTSZ)                                                             \
	X(cuLaunchGrid, "cuLaunchGrid", 2000, AQ_LEGACY)                       \
	X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, AQ_LEGACY)             \
	X(cuLaunchKernel, "cuLaunchKernel", 4000, AQ_LEGACY)                   \
	X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, AQ_LEGACY)              \
	X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, AQ_PTSZ)           \
	X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, AQ_PTSZ)                \
	X(cuLibraryUnload, "cuLibraryUnload", 12000, AQ_LEGACY)                \
	X(cuMemAlloc, "cuMemAlloc", 0, AQ_LEGACY)                              \
	X(cuMemAllocAsync, "cuMemAllocAsync", 11020, AQ_LEGACY)                \
	X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, AQ_PTSZ)             \
	X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020,           \
	  AQ_LEGACY)                                                           \
	X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020,      \
	  AQ_PTSZ)                                                             \
	X(cuMemAllocManaged, "cuMemAllocManaged", 6000, AQ_LEGACY)             \
	X(cuMemAllocPitch, "cuMemAllocPitch", 0, AQ_LEGACY)                    \
	X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, AQ_LEGACY)              \
	X(cuMemAlloc_v2, "cuMemAlloc", 3020, AQ_LEGACY)                        \
	X(cuMemCreate, "cuMemCreate", 10020, AQ_LEGACY)                        \
	X(cuMemFree, "cuMemFree", 0, AQ_LEGACY)                                \
	X(cuMemFreeAsync, "cuMemFreeAsync", 11020, AQ_LEGACY)                  \
	X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, AQ_PTSZ)               \
	X(cuMemFree_v2, "cuMemFree", 3020, AQ_LEGACY)                          \
	X(cuMemGetInfo, "cuMemGetInfo", 0, AQ_LEGACY)                          \
	X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, AQ_LEGACY)                    \
	X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle",    \
	  10020, AQ_LEGACY)                                                    \
	X(cuMemMap, "cuMemMap", 10020, AQ_LEGACY)                              \
	X(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010, AQ_LEGACY)          \
	X(cuMemMapArrayAsync_ptsz, "cuMemMapArrayAsync", 11010, AQ_PTSZ)       \
	X(cuMemPoolCreate, "cuMemPoolCreate", 11020, AQ_LEGACY)                \
	X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, AQ_LEGACY)              \
	X(cuMemPoolImportFromShareableHandle,                                  \
	  "cuMemPoolImportFromShareableHandle", 11020, AQ_LEGACY)              \
	X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, AQ_LEGACY)    \
	X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, AQ_LEGACY)                \
	X(cuMemRelease, "cuMemRelease", 10020, AQ_LEGACY)                      \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000,   \
	  AQ_LEGACY)                                                           \
	X(cuMemUnmap, "cuMemUnmap", 10020, AQ_LEGACY)                          \
	X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, AQ_LEGACY)   \
	X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, AQ_LEGACY) \
	X(cuModuleUnload, "cuModuleUnload", 2000, AQ_LEGACY)

#define AQ_WRAPPED_NVML(X)                                                     \
	X(nvmlDeviceGetComputeRunningProcesses, "", 0, 0)                      \
	X(nvmlDeviceGetComputeRunningProcesses_v2, "", 0, 0)                   \
	X(nvmlDeviceGetComputeRunningProcesses_v3, "", 0, 0)                   \
	X(nvmlDeviceGetGraphicsRunningProcesses, "", 0, 0)                     \
	X(nvmlDeviceGetGraphicsRunningProcesses_v2, "", 0, 0)                  \
	X(nvmlDeviceGetGraphicsRunningProcesses_v3, "", 0, 0)                  \
	X(nvmlDeviceGetMPSComputeRunningProcesses, "", 0, 0)                   \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v2, "", 0, 0)                \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v3, "", 0, 0)                \
	X(nvmlDeviceGetMemoryInfo, "", 0, 0)                                   \
	X(nvmlDeviceGetMemoryInfo_v2, "", 0, 0)                                \
	X(nvmlDeviceGetProcessUtilization, "", 0, 0)                           \
	X(nvmlDeviceGetProcessesUtilizationInfo, "", 0, 0)                     \
	X(nvmlDeviceGetRunningProcessDetailList, "", 0, 0)

#define AQ_CALLED_CUDA(X)                                                      \
	X(cuArrayGetMemoryRequirements)                                        \
	X(cuCtxGetCurrent)                                                     \
	X(cuCtxGetDevice)                                                      \
	X(cuCtxGetLimit)                                                       \
	X(cuCtxPopCurrent_v2)                                                  \
	X(cuCtxPushCurrent_v2)                                                 \
	X(cuDeviceGetGraphMemAttribute)                                        \
	X(cuDeviceGetMemPool)                                                  \
	X(cuDeviceGetUuid)                                                     \
	X(cuDeviceGetUuid_v2)                                                  \
	X(cuDevicePrimaryCtxGetState)                                          \
	X(cuDriverGetVersion)                                                  \
	X(cuEventCreate)                                                       \
	X(cuEventDestroy_v2)                                                   \
	X(cuEventElapsedTime)                                                  \
	X(cuEventElapsedTime_v2)                                               \
	X(cuEventQuery)                                                        \
	X(cuEventRecord)                                                       \
	X(cuEventRecord_ptsz)                                                  \
	X(cuGraphGetNodes)                                                     \
	X(cuGraphMemAllocNodeGetParams)                                        \
	X(cuGraphNodeGetType)                                                  \
	X(cuMemPoolGetAttribute)                                               \
	X(cuMipmappedArrayGetMemoryRequirements)                               \
	X(cuPointerGetAttribute)                                               \
	X(cuStreamGetCtx)                                                      \
	X(cuStreamGetCtx_ptsz)                                                 \
	X(cuStreamIsCapturing)                                                 \
	X(cuStreamIsCapturing_ptsz)                                            \
	X(cuThreadExchangeStreamCaptureMode)

#define AQ_CALLED_NVML(X) X(nvmlDeviceGetUUID)

/* cu(name, parameters): wrapped, exported. */
#define cu(name, ...) AQ_EXPORT CUresult name(__VA_ARGS__)
#define cu_ptsz(name, ...)     \
	cu(name, __VA_ARGS__); \
	cu(name##_ptsz, __VA_ARGS__)

cu(cuArray3DCreate, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *);
cu(cuArray3DCreate_v2, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
cu(cuArrayCreate, CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *);
cu(cuArrayCreate_v2, CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
cu(cuArrayDestroy, CUarray);
cu(cuCtxCreate, CUcontext *, unsigned, CUdevice);
cu(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice);
cu(cuCtxCreate_v3, CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice);
cu(cuCtxCreate_v4, CUcontext *, CUctxCreateParams *, unsigned, CUdevice);
cu(cuCtxDestroy, CUcontext);
cu(cuCtxDestroy_v2, CUcontext);
cu(cuCtxSetLimit, int, size_t);
cu(cuDeviceGraphMemTrim, CUdevice);
cu(cuDevicePrimaryCtxRelease, CUdevice);
cu(cuDevicePrimaryCtxRelease_v2, CUdevice);
cu(cuDevicePrimaryCtxReset, CUdevice);
cu(cuDevicePrimaryCtxReset_v2, CUdevice);
cu(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
cu(cuDeviceTotalMem, unsigned *, CUdevice);
cu(cuDeviceTotalMem_v2, size_t *, CUdevice);
cu(cuGetProcAddress, const char *, void **, int, cuuint64_t);
cu(cuGetProcAddress_v2, const char *, void **, int, cuuint64_t, int *);
cu(cuGraphExecDestroy, CUgraphExec);
cu(cuGraphInstantiate, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);
cu(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long);
cu_ptsz(cuGraphInstantiateWithParams, CUgraphExec *, CUgraph,
	CUDA_GRAPH_INSTANTIATE_PARAMS *);
cu(cuGraphInstantiate_v2, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);
cu_ptsz(cuGraphLaunch, CUgraphExec, CUstream);
cu_ptsz(cuGraphUpload, CUgraphExec, CUstream);
cu(cuGreenCtxCreate, CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
cu(cuGreenCtxDestroy, CUgreenCtx);
cu(cuInit, unsigned);
cu(cuLaunch, CUfunction);
cu_ptsz(cuLaunchCooperativeKernel, CUfunction, unsigned, unsigned, unsigned,
	unsigned, unsigned, unsigned, unsigned, CUstream, void **);
cu(cuLaunchCooperativeKernelMultiDevice, CUDA_LAUNCH_PARAMS *, unsigned,
   unsigned);
cu(cuLaunchGrid, CUfunction, int, int);
cu(cuLaunchGridAsync, CUfunction, int, int, CUstream);
cu_ptsz(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned,
	unsigned, unsigned, unsigned, CUstream, void **, void **);
cu_ptsz(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **, void **);
cu(cuLibraryUnload, CUlibrary);
cu(cuMemAlloc, CUdeviceptr_v1 *, unsigned);
cu_ptsz(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
cu_ptsz(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream);
cu(cuMemAllocManaged, CUdeviceptr *, size_t, unsigned);
cu(cuMemAllocPitch, CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned);
cu(cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned);
cu(cuMemAlloc_v2, CUdeviceptr *, size_t);
cu(cuMemCreate, CUmemGenericAllocationHandle *, size_t,
   const CUmemAllocationProp *, unsigned long long);
cu(cuMemFree, CUdeviceptr_v1);
cu_ptsz(cuMemFreeAsync, CUdeviceptr, CUstream);
cu(cuMemFree_v2, CUdeviceptr);
cu(cuMemGetInfo, unsigned *, unsigned *);
cu(cuMemGetInfo_v2, size_t *, size_t *);
cu(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int);
cu(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
   unsigned long long);
cu_ptsz(cuMemMapArrayAsync, CUarrayMapInfo *, unsigned, CUstream);
cu(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *);
cu(cuMemPoolDestroy, CUmemoryPool);
cu(cuMemPoolImportFromShareableHandle, CUmemoryPool *, void *, int,
   unsigned long long);
cu(cuMemPoolSetAttribute, CUmemoryPool, int, void *);
cu(cuMemPoolTrimTo, CUmemoryPool, size_t);
cu(cuMemRelease, CUmemGenericAllocationHandle);
cu(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *, void *);
cu(cuMemUnmap, CUdeviceptr, size_t);
cu(cuMipmappedArrayCreate, CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *,
   unsigned);
cu(cuMipmappedArrayDestroy, CUmipmappedArray);
cu(cuModuleUnload, CUmodule);

#define nvml_processes(name)                                               \
	AQ_EXPORT nvmlReturn_t name(nvmlDevice_t, unsigned *,              \
				    nvmlProcessInfo_v1_t *);               \
	AQ_EXPORT nvmlReturn_t name##_v2(nvmlDevice_t, unsigned *,         \
					 nvmlProcessInfo_t *);             \
	AQ_EXPORT nvmlReturn_t name##_v3(nvmlDevice_t, unsigned *,         \
					 nvmlProcessInfo_t *)

nvml_processes(nvmlDeviceGetComputeRunningProcesses);
nvml_processes(nvmlDeviceGetGraphicsRunningProcesses);
nvml_processes(nvmlDeviceGetMPSComputeRunningProcesses);
AQ_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(
	nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *,
	unsigned long long);
AQ_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
	nvmlDevice_t, nvmlProcessesUtilizationInfo_t *);
AQ_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(
	nvmlDevice_t, nvmlProcessDetailList_t *);
AQ_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
AQ_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t,
						  nvmlMemory_v2_t *);

/* Only called, through aq_real; never linked to. */
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUarray,
				      CUdevice);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuCtxGetDevice(CUdevice *);
CUresult cuCtxGetLimit(size_t *, int);
CUresult cuCtxPopCurrent_v2(CUcontext *);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuDeviceGetGraphMemAttribute(CUdevice, int, void *);
CUresult cuDeviceGetMemPool(CUmemoryPool *, CUdevice);
CUresult cuDeviceGetUuid(CUuuid *, CUdevice);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *, int *);
CUresult cuDriverGetVersion(int *);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuEventElapsedTime_v2(float *, CUevent, CUevent);
CUresult cuEventQuery(CUevent);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventRecord_ptsz(CUevent, CUstream);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphNodeGetType(CUgraphNode, int *);
CUresult cuMemPoolGetAttribute(CUmemoryPool, int, void *);
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *,
					       CUmipmappedArray, CUdevice);
CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);
CUresult cuStreamGetCtx(CUstream, CUcontext *);
CUresult cuStreamGetCtx_ptsz(CUstream, CUcontext *);
CUresult cuStreamIsCapturing(CUstream, int *);
CUresult cuStreamIsCapturing_ptsz(CUstream, int *);
CUresult cuThreadExchangeStreamCaptureMode(int *);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned);

/* The drivers' own functions; a member is NULL where the driver has none. Valid
 * once aq_cuda(), or aq_nvml() for the nvml members, has said true. */
struct aq_real {
#define MEMBER(name, ...) __typeof__(name) *name;
	AQ_WRAPPED_CUDA(MEMBER)
	AQ_CALLED_CUDA(MEMBER)
	AQ_WRAPPED_NVML(MEMBER)
	AQ_CALLED_NVML(MEMBER)
#undef MEMBER
};

extern struct aq_real aq_real;

/* lookup.c: whether the driver is in this process; finds it when it can. */
extern bool aq_cuda_bound, aq_nvml_bound;
bool aq_bind_cuda(void);
bool aq_bind_nvml(void);

static inline bool aq_cuda(void)
{
	return __builtin_expect(__atomic_load_n(&aq_cuda_bound,
						__ATOMIC_ACQUIRE), 1) ||
	       aq_bind_cuda();
}

static inline bool aq_nvml(void)
{
	return __atomic_load_n(&aq_nvml_bound, __ATOMIC_ACQUIRE) ||
	       aq_bind_nvml();
}

/* The head of a wrapper: without the function there is nothing to forward to. */
#define AQ_ENTER(name)                                     \
	do {                                               \
		if (!aq_cuda() || !aq_real.name)           \
			return CUDA_ERROR_NOT_FOUND;       \
	} while (0)

#endif
