/*
 * The functions that the client calls, by the name and version under which
 * cuGetProcAddress gives each.
 */
#include "../src/functions.h"

CUresult cuDeviceGet(CUdevice *, int);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
CUresult cuDeviceSetMemPool(CUdevice, CUmemoryPool);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr,
			     unsigned long long);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamCreate(CUstream *, unsigned);

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

typedef struct {
	int type;
	void *handle[2];
	unsigned long long size;
	unsigned flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
	unsigned long long offset, size;
	unsigned flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct {
	unsigned numDevices;
	size_t size;
	unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

typedef struct CUextMemory_st *CUexternalMemory;

CUresult cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, int,
				      unsigned long long);
CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, int,
					  unsigned long long);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *, CUdeviceptr);
CUresult cuMemPoolImportPointer(CUdeviceptr *, CUmemoryPool,
				CUmemPoolPtrExportData *);
CUresult cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned);
CUresult cuIpcCloseMemHandle(CUdeviceptr);
CUresult cuImportExternalMemory(CUexternalMemory *,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *);
CUresult cuExternalMemoryGetMappedBuffer(
	CUdeviceptr *, CUexternalMemory,
	const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *);
CUresult cuDestroyExternalMemory(CUexternalMemory);
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *,
			   const CUmulticastObjectProp *);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t,
			    CUmemGenericAllocationHandle, size_t, size_t,
			    unsigned long long);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *,
				size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *,
			       size_t, CUdeviceptr);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);

/* Name here, name for cuGetProcAddress, version. */
#define MEMORY_FUNCTIONS(X)                                           \
	X(cuInit, "cuInit", 2000)                                     \
	X(cuDeviceGet, "cuDeviceGet", 2000)                           \
	X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020)              \
	X(cuMemGetInfo_v2, "cuMemGetInfo", 3020)                      \
	X(cuMemAlloc_v2, "cuMemAlloc", 3020)                          \
	X(cuMemFree_v2, "cuMemFree", 3020)                            \
	X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020)                \
	X(cuMemAllocManaged, "cuMemAllocManaged", 6000)               \
	X(cuMemAllocAsync, "cuMemAllocAsync", 11020)                  \
	X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020)  \
	X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                    \
	X(cuMemPoolCreate, "cuMemPoolCreate", 11020)                  \
	X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020)                \
	X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020)                  \
	X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020)      \
	X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool",     \
	  11020)                                                      \
	X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020)            \
	X(cuMemAddressReserve, "cuMemAddressReserve", 10020)          \
	X(cuMemCreate, "cuMemCreate", 10020)                          \
	X(cuMemRelease, "cuMemRelease", 10020)                        \
	X(cuMemMap, "cuMemMap", 10020)                                \
	X(cuMemUnmap, "cuMemUnmap", 10020)                            \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", \
	  11000)                                                      \
	X(cuStreamCreate, "cuStreamCreate", 2000)                     \
	X(cuStreamSynchronize, "cuStreamSynchronize", 2000)

#define CONTEXT_FUNCTIONS(X)                                            \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)   \
	X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease",    \
	  11000)                                                        \
	X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000) \
	X(cuCtxCreate, "cuCtxCreate", 2000)                             \
	X(cuCtxCreate_v2, "cuCtxCreate", 3020)                          \
	X(cuCtxCreate_v3, "cuCtxCreate", 11040)                         \
	X(cuCtxCreate_v4, "cuCtxCreate", 12050)                         \
	X(cuCtxDestroy, "cuCtxDestroy", 2000)                           \
	X(cuCtxDestroy_v2, "cuCtxDestroy", 4000)                        \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                     \
	X(cuCtxSetLimit, "cuCtxSetLimit", 3010)                         \
	X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040)                  \
	X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040)

#define ARRAY_FUNCTIONS(X)                                              \
	X(cuArrayCreate_v2, "cuArrayCreate", 3020)                      \
	X(cuArray3DCreate_v2, "cuArray3DCreate", 3020)                  \
	X(cuArrayDestroy, "cuArrayDestroy", 2000)                       \
	X(cuArrayGetMemoryRequirements, "cuArrayGetMemoryRequirements", \
	  11060)                                                        \
	X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000)       \
	X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000)     \
	X(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010)

#define SHARE_FUNCTIONS(X)                                                \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",   \
	  10020)                                                          \
	X(cuMemImportFromShareableHandle,                                 \
	  "cuMemImportFromShareableHandle", 10020)                        \
	X(cuMemPoolExportToShareableHandle,                               \
	  "cuMemPoolExportToShareableHandle", 11020)                      \
	X(cuMemPoolImportFromShareableHandle,                             \
	  "cuMemPoolImportFromShareableHandle", 11020)                    \
	X(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020)        \
	X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020)        \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010)                   \
	X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000)             \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010)               \
	X(cuImportExternalMemory, "cuImportExternalMemory", 10000)        \
	X(cuExternalMemoryGetMappedBuffer,                                \
	  "cuExternalMemoryGetMappedBuffer", 10000)                       \
	X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000)      \
	X(cuMulticastCreate, "cuMulticastCreate", 12010)                  \
	X(cuMulticastBindMem, "cuMulticastBindMem", 12010)

#define GRAPH_FUNCTIONS(X)                                               \
	X(cuGraphCreate, "cuGraphCreate", 10000)                         \
	X(cuGraphDestroy, "cuGraphDestroy", 10000)                       \
	X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040)       \
	X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040)         \
	X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010)        \
	X(cuStreamEndCapture, "cuStreamEndCapture", 10000)               \
	X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000)            \
	X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",    \
	  11040)                                                         \
	X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams",  \
	  12000)                                                         \
	X(cuGraphUpload, "cuGraphUpload", 11010)                         \
	X(cuGraphLaunch, "cuGraphLaunch", 10000)                         \
	X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000)               \
	X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040)

#define FUNCTIONS(X)         \
	MEMORY_FUNCTIONS(X)  \
	CONTEXT_FUNCTIONS(X) \
	ARRAY_FUNCTIONS(X)   \
	SHARE_FUNCTIONS(X)   \
	GRAPH_FUNCTIONS(X)
