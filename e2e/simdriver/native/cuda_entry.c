/*
 * cuGetProcAddress: which function a name means for a program built with a
 * given version of CUDA. Each line of the table is one ABI of a name, the
 * version that brought it (NVIDIA's reference manual and release notes), and the
 * twin that treats stream 0 as the thread's own.
 */
#define SIM_STUBS_HERE
#include "cuda_api.h"
#include "cuda_fault.h"

#include <string.h>

struct entry {
	const char *name;
	int version;
	void *function;
	void *per_thread;
};

#define ABI(name, version, function) \
	{ #name, version, entry_##function, NULL }
#define ABI_PTSZ(name, version, function) \
	{ #name, version, entry_##function, entry_##function##_ptsz }

/* ABIs of one name stand together, the older first. */
static const struct entry entries[] = {
	ABI(cuInit, 2000, cuInit),
	ABI(cuDriverGetVersion, 2020, cuDriverGetVersion),
	ABI(cuGetErrorName, 6000, cuGetErrorName),
	ABI(cuGetErrorString, 6000, cuGetErrorString),
	ABI(cuGetProcAddress, 11030, cuGetProcAddress),
	ABI(cuGetProcAddress, 12000, cuGetProcAddress_v2),

	ABI(cuDeviceGet, 2000, cuDeviceGet),
	ABI(cuDeviceGetCount, 2000, cuDeviceGetCount),
	ABI(cuDeviceGetName, 2000, cuDeviceGetName),
	ABI(cuDeviceGetUuid, 9020, cuDeviceGetUuid),
	ABI(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2),
	ABI(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute),
	ABI(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId),
	ABI(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId),
	ABI(cuDeviceTotalMem, 2000, cuDeviceTotalMem),
	ABI(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2),

	ABI(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain),
	ABI(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease),
	ABI(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2),
	ABI(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset),
	ABI(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2),
	ABI(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState),
	ABI(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags),
	ABI(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2),
	ABI(cuCtxCreate, 2000, cuCtxCreate),
	ABI(cuCtxCreate, 3020, cuCtxCreate_v2),
	ABI(cuCtxCreate, 11040, cuCtxCreate_v3),
	ABI(cuCtxCreate, 12050, cuCtxCreate_v4),
	ABI(cuCtxDestroy, 2000, cuCtxDestroy),
	ABI(cuCtxDestroy, 4000, cuCtxDestroy_v2),
	ABI(cuCtxSetCurrent, 4000, cuCtxSetCurrent),
	ABI(cuCtxGetCurrent, 4000, cuCtxGetCurrent),
	ABI(cuCtxPushCurrent, 2000, cuCtxPushCurrent),
	ABI(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2),
	ABI(cuCtxPopCurrent, 2000, cuCtxPopCurrent),
	ABI(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2),
	ABI(cuCtxGetDevice, 2000, cuCtxGetDevice),
	ABI(cuCtxGetDevice, 13000, cuCtxGetDevice_v2),
	ABI(cuCtxSynchronize, 2000, cuCtxSynchronize),
	ABI(cuCtxSynchronize, 13000, cuCtxSynchronize_v2),
	ABI(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion),
	ABI(cuCtxSetLimit, 3010, cuCtxSetLimit),
	ABI(cuCtxGetLimit, 3010, cuCtxGetLimit),
	ABI(cuGreenCtxCreate, 12040, cuGreenCtxCreate),
	ABI(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy),

	ABI(cuMemGetInfo, 3020, cuMemGetInfo_v2),
	ABI(cuMemAlloc, 3020, cuMemAlloc_v2),
	ABI(cuMemFree, 3020, cuMemFree_v2),
	ABI(cuMemAllocPitch, 3020, cuMemAllocPitch_v2),
	ABI(cuMemAllocManaged, 6000, cuMemAllocManaged),
	ABI(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2),
	ABI(cuPointerGetAttribute, 4000, cuPointerGetAttribute),
	ABI(cuMemHostAlloc, 2020, cuMemHostAlloc),
	ABI(cuMemAllocHost, 3020, cuMemAllocHost_v2),
	ABI(cuMemFreeHost, 2000, cuMemFreeHost),

	ABI_PTSZ(cuMemAllocAsync, 11020, cuMemAllocAsync),
	ABI_PTSZ(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync),
	ABI_PTSZ(cuMemFreeAsync, 11020, cuMemFreeAsync),
	ABI(cuMemPoolCreate, 11020, cuMemPoolCreate),
	ABI(cuMemPoolDestroy, 11020, cuMemPoolDestroy),
	ABI(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo),
	ABI(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute),
	ABI(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute),
	ABI(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool),
	ABI(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool),
	ABI(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool),

	ABI(cuMemAddressReserve, 10020, cuMemAddressReserve),
	ABI(cuMemAddressFree, 10020, cuMemAddressFree),
	ABI(cuMemCreate, 10020, cuMemCreate),
	ABI(cuMemRelease, 10020, cuMemRelease),
	ABI(cuMemMap, 10020, cuMemMap),
	ABI(cuMemUnmap, 10020, cuMemUnmap),
	ABI(cuMemSetAccess, 10020, cuMemSetAccess),
	ABI(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle),
	ABI_PTSZ(cuMemMapArrayAsync, 11010, cuMemMapArrayAsync),
	ABI(cuMemGetAllocationGranularity, 10020,
	    cuMemGetAllocationGranularity),
	ABI(cuMemGetAllocationPropertiesFromHandle, 10020,
	    cuMemGetAllocationPropertiesFromHandle),

	ABI(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle),
	ABI(cuMemImportFromShareableHandle, 10020,
	    cuMemImportFromShareableHandle),
	ABI(cuMemPoolExportToShareableHandle, 11020,
	    cuMemPoolExportToShareableHandle),
	ABI(cuMemPoolImportFromShareableHandle, 11020,
	    cuMemPoolImportFromShareableHandle),
	ABI(cuMemPoolExportPointer, 11020, cuMemPoolExportPointer),
	ABI(cuMemPoolImportPointer, 11020, cuMemPoolImportPointer),
	ABI(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle),
	ABI(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle),
	ABI(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2),
	ABI(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle),
	ABI(cuImportExternalMemory, 10000, cuImportExternalMemory),
	ABI(cuExternalMemoryGetMappedBuffer, 10000,
	    cuExternalMemoryGetMappedBuffer),
	ABI(cuDestroyExternalMemory, 10000, cuDestroyExternalMemory),
	ABI(cuMulticastCreate, 12010, cuMulticastCreate),
	ABI(cuMulticastAddDevice, 12010, cuMulticastAddDevice),
	ABI(cuMulticastBindMem, 12010, cuMulticastBindMem),

	ABI(cuArrayCreate, 3020, cuArrayCreate_v2),
	ABI(cuArray3DCreate, 3020, cuArray3DCreate_v2),
	ABI(cuArrayDestroy, 2000, cuArrayDestroy),
	ABI(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements),
	ABI(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate),
	ABI(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy),
	ABI(cuMipmappedArrayGetMemoryRequirements, 11060,
	    cuMipmappedArrayGetMemoryRequirements),

	ABI(cuStreamCreate, 2000, cuStreamCreate),
	ABI(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority),
	ABI(cuStreamDestroy, 4000, cuStreamDestroy_v2),
	ABI_PTSZ(cuStreamSynchronize, 2000, cuStreamSynchronize),
	ABI_PTSZ(cuStreamQuery, 2000, cuStreamQuery),
	ABI_PTSZ(cuStreamGetCtx, 9020, cuStreamGetCtx),
	ABI_PTSZ(cuStreamWaitEvent, 3020, cuStreamWaitEvent),

	ABI(cuEventCreate, 2000, cuEventCreate),
	ABI(cuEventDestroy, 4000, cuEventDestroy_v2),
	ABI_PTSZ(cuEventRecord, 2000, cuEventRecord),
	ABI_PTSZ(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags),
	ABI(cuEventQuery, 2000, cuEventQuery),
	ABI(cuEventSynchronize, 2000, cuEventSynchronize),
	ABI(cuEventElapsedTime, 2000, cuEventElapsedTime),
	ABI(cuEventElapsedTime, 12080, cuEventElapsedTime_v2),

	ABI(cuModuleLoad, 2000, cuModuleLoad),
	ABI(cuModuleLoadData, 2000, cuModuleLoadData),
	ABI(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx),
	ABI(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary),
	ABI(cuModuleUnload, 2000, cuModuleUnload),
	ABI(cuModuleGetFunction, 2000, cuModuleGetFunction),
	ABI(cuFuncGetModule, 11000, cuFuncGetModule),
	ABI(cuFuncGetName, 12030, cuFuncGetName),
	ABI(cuLibraryLoadData, 12000, cuLibraryLoadData),
	ABI(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile),
	ABI(cuLibraryUnload, 12000, cuLibraryUnload),
	ABI(cuLibraryGetKernel, 12000, cuLibraryGetKernel),
	ABI(cuLibraryGetModule, 12000, cuLibraryGetModule),
	ABI(cuKernelGetFunction, 12000, cuKernelGetFunction),
	ABI(cuKernelGetName, 12030, cuKernelGetName),

	ABI_PTSZ(cuLaunchKernel, 4000, cuLaunchKernel),
	ABI_PTSZ(cuLaunchKernelEx, 11060, cuLaunchKernelEx),
	ABI_PTSZ(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel),
	ABI(cuLaunchCooperativeKernelMultiDevice, 9000,
	    cuLaunchCooperativeKernelMultiDevice),
	ABI(cuFuncSetBlockShape, 2000, cuFuncSetBlockShape),
	ABI(cuLaunch, 2000, cuLaunch),
	ABI(cuLaunchGrid, 2000, cuLaunchGrid),
	ABI(cuLaunchGridAsync, 2000, cuLaunchGridAsync),

	ABI_PTSZ(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2),
	ABI_PTSZ(cuStreamEndCapture, 10000, cuStreamEndCapture),
	ABI_PTSZ(cuStreamIsCapturing, 10000, cuStreamIsCapturing),
	ABI_PTSZ(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2),
	ABI_PTSZ(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3),
	ABI(cuThreadExchangeStreamCaptureMode, 10010,
	    cuThreadExchangeStreamCaptureMode),

	ABI(cuGraphCreate, 10000, cuGraphCreate),
	ABI(cuGraphDestroy, 10000, cuGraphDestroy),
	ABI(cuGraphGetNodes, 10000, cuGraphGetNodes),
	ABI(cuGraphNodeGetType, 10000, cuGraphNodeGetType),
	ABI(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode),
	ABI(cuGraphAddKernelNode, 10000, cuGraphAddKernelNode),
	ABI(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2),
	ABI(cuGraphAddEventRecordNode, 11010, cuGraphAddEventRecordNode),
	ABI(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode),
	ABI(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams),
	ABI(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode),
	ABI(cuGraphAddNode, 12020, cuGraphAddNode),
	ABI(cuGraphAddNode, 12030, cuGraphAddNode_v2),
	ABI(cuGraphInstantiate, 11000, cuGraphInstantiate_v2),
	ABI(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags),
	ABI(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags),
	ABI_PTSZ(cuGraphInstantiateWithParams, 12000,
		 cuGraphInstantiateWithParams),
	ABI_PTSZ(cuGraphUpload, 11010, cuGraphUpload),
	ABI_PTSZ(cuGraphLaunch, 10000, cuGraphLaunch),
	ABI(cuGraphExecDestroy, 10000, cuGraphExecDestroy),
	ABI(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute),
	ABI(cuDeviceSetGraphMemAttribute, 11040, cuDeviceSetGraphMemAttribute),
	ABI(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim),
};

/* The twins came with CUDA 7.0, or with their function when that is younger. */
static void *pick(const struct entry *entry, int version, uint64_t flags)
{
	if (flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM &&
	    entry->per_thread != NULL && version >= 7000)
		return entry->per_thread;
	return entry->function;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
			     uint64_t flags, int *status)
{
	const struct entry *found = NULL;
	int search = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, driver = 0;

	if (cuDriverGetVersion(&driver) != CUDA_SUCCESS || symbol == NULL ||
	    function == NULL || version > driver ||
	    flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		if (strcmp(entries[i].name, symbol) != 0)
			continue;
		search = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (entries[i].version <= version)
			found = &entries[i];
	}
	if (found != NULL)
		search = CU_GET_PROC_ADDRESS_SUCCESS;
	*function = found == NULL ? NULL :
				    fault_detour(pick(found, version, flags));
	if (status != NULL)
		*status = search;
	return CUDA_SUCCESS;
}

/* The ABI of CUDA 11 has no status and says it in its result. */
CUresult cuGetProcAddress(const char *symbol, void **function, int version,
			  uint64_t flags)
{
	CUresult result =
		cuGetProcAddress_v2(symbol, function, version, flags, NULL);

	if (result == CUDA_SUCCESS && *function == NULL)
		return CUDA_ERROR_NOT_FOUND;
	return result;
}
