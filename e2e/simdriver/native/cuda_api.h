/*
 * The part of the CUDA driver API that the simulated libcuda offers: names,
 * values and signatures needed to be called by programs built for the real one,
 * written down from NVIDIA's public reference manual (CUDA Driver API, 13.0).
 */
#ifndef SIM_CUDA_API_H
#define SIM_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#include "sim.h"

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_ALREADY_MAPPED = 208,
	CUDA_ERROR_NOT_MAPPED = 211,
	CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
	CUDA_ERROR_FILE_NOT_FOUND = 301,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
	CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_ERROR_CAPTURED_EVENT = 907,
	CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

typedef struct {
	char bytes[16];
} CUuuid;

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

enum { /* CUdevice_attribute */
	CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
	CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
	CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3,
	CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4,
	CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
	CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6,
	CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7,
	CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
	CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
	CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
	CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
	CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
	CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
	CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
};

enum { /* CUmemLocationType */
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_HOST = 2,
	CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
	CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
};

enum { /* CUmemAllocationType */
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
};

enum { /* CUmemPool_attribute */
	CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
	CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
	CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
};

enum { /* CUpointer_attribute */
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
	CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
};

enum { /* CUmemorytype */
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,
};

enum { /* CUlimit, as far as it is simulated */
	CU_LIMIT_STACK_SIZE = 0,
	CU_LIMIT_PRINTF_FIFO_SIZE = 1,
	CU_LIMIT_MALLOC_HEAP_SIZE = 2,
	CU_LIMITS = 3,
};

enum { /* CUmemAllocationHandleType */
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
};

enum { /* of array descriptors */
	CUDA_ARRAY3D_LAYERED = 0x01,
	CUDA_ARRAY3D_CUBEMAP = 0x04,
	CUDA_ARRAY3D_SPARSE = 0x40,
	CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

enum { /* CUmemOperationType */
	CU_MEM_OPERATION_TYPE_MAP = 1,
	CU_MEM_OPERATION_TYPE_UNMAP = 2,
};

enum { /* CUmemAttach_flags */
	CU_MEM_ATTACH_GLOBAL = 1,
	CU_MEM_ATTACH_HOST = 2,
};

enum { /* CUdriverProcAddress_flags and ...QueryResult */
	CU_GET_PROC_ADDRESS_DEFAULT = 0,
	CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
	CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,

	CU_GET_PROC_ADDRESS_SUCCESS = 0,
	CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
	CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	int allocType;
	int handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

typedef struct {
	size_t Width, Height;
	int Format;
	unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	size_t Width, Height, Depth;
	int Format;
	unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
	size_t size, alignment;
	unsigned reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct {
	int resourceType; /* 0: array, 1: mipmapped array */
	void *resource;
	int subresourceType;
	/* A level: level, layer, offset and extent in three dimensions. A tail:
	 * layer, then offset and size of 64 bits. */
	unsigned subresource[8] __attribute__((aligned(8)));
	int memOperationType;
	int memHandleType;
	CUmemGenericAllocationHandle memHandle;
	unsigned long long offset;
	unsigned deviceBitMask, flags, reserved[2];
} CUarrayMapInfo;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

typedef struct {
	int type;
	union {
		int fd;
		struct {
			void *handle;
			const void *name;
		} win32;
		const void *nvSciBufObject;
	} handle;
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

_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC) == 104,
	       "CUDA_EXTERNAL_MEMORY_HANDLE_DESC");
_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_BUFFER_DESC) == 88,
	       "CUDA_EXTERNAL_MEMORY_BUFFER_DESC");
_Static_assert(sizeof(CUmulticastObjectProp) == 32, "CUmulticastObjectProp");
_Static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR) == 24, "CUDA_ARRAY_DESCRIPTOR");
_Static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
_Static_assert(sizeof(CUarrayMapInfo) == 96, "CUarrayMapInfo");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");

/*
 * CU_API(name, parameters) declares an exported entry point; a _ptsz twin differs
 * only in what stream 0 means.
 *
 * Within the driver the function is sim_<name>, and <name> a stub in front of it
 * that lets a test make a call fail (cuda_fault.c). So a call that fails is one
 * that came from outside. The stubs are made where SIM_STUBS_HERE is defined.
 */
#if defined(SIM_DRIVER) && defined(__x86_64__)
#define SIM_STUBS
#define SIM_DECLARE(name, ...) CUresult name(__VA_ARGS__) __asm__("sim_" #name)
#else
#define SIM_DECLARE(name, ...) SIM_EXPORT CUresult name(__VA_ARGS__)
#endif

#if defined(SIM_STUBS)
#define SIM_STUB(name)                                   \
	__asm__(".section .rodata\n"                     \
		".Lname_" #name ": .string \"" #name "\"\n" \
		".text\n"                                \
		".globl " #name "\n"                     \
		".type " #name ",@function\n"            \
		#name ":\n"                              \
		"mov sim_fault_page(%rip), %r11\n"       \
		"cmpl $0, (%r11)\n"                      \
		"je sim_" #name "\n"                     \
		"lea sim_" #name "(%rip), %r10\n"        \
		"lea .Lname_" #name "(%rip), %r11\n"     \
		"jmp sim_fault_stub\n"                   \
		".size " #name ", .-" #name "\n")
#else
#define SIM_STUB(name) _Static_assert(1, #name)
#endif

#if defined(SIM_STUBS_HERE) /* entry_<name>: where programs call it */
#define CU_API(name, ...)                          \
	SIM_DECLARE(name, __VA_ARGS__);            \
	SIM_STUB(name);                            \
	extern char entry_##name[] __asm__(#name)
#else
#define CU_API(name, ...) SIM_DECLARE(name, __VA_ARGS__)
#endif

#define CU_API_PTSZ(name, ...) \
	CU_API(name, __VA_ARGS__); \
	CU_API(name##_ptsz, __VA_ARGS__)

CU_API(cuInit, unsigned flags);
CU_API(cuDriverGetVersion, int *version);
CU_API(cuGetErrorName, CUresult error, const char **name);
CU_API(cuGetErrorString, CUresult error, const char **text);
CU_API(cuGetProcAddress, const char *symbol, void **function, int version,
       uint64_t flags);
CU_API(cuGetProcAddress_v2, const char *symbol, void **function, int version,
       uint64_t flags, int *status);

CU_API(cuDeviceGet, CUdevice *device, int ordinal);
CU_API(cuDeviceGetCount, int *count);
CU_API(cuDeviceGetName, char *name, int length, CUdevice device);
CU_API(cuDeviceGetUuid, CUuuid *uuid, CUdevice device);
CU_API(cuDeviceGetUuid_v2, CUuuid *uuid, CUdevice device);
CU_API(cuDeviceGetAttribute, int *value, int attribute, CUdevice device);
CU_API(cuDeviceGetPCIBusId, char *id, int length, CUdevice device);
CU_API(cuDeviceGetByPCIBusId, CUdevice *device, const char *id);
CU_API(cuDeviceTotalMem, unsigned *bytes, CUdevice device);
CU_API(cuDeviceTotalMem_v2, size_t *bytes, CUdevice device);

CU_API(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device);
CU_API(cuDevicePrimaryCtxRelease, CUdevice device);
CU_API(cuDevicePrimaryCtxRelease_v2, CUdevice device);
CU_API(cuDevicePrimaryCtxReset, CUdevice device);
CU_API(cuDevicePrimaryCtxReset_v2, CUdevice device);
CU_API(cuDevicePrimaryCtxGetState, CUdevice device, unsigned *flags,
       int *active);
CU_API(cuDevicePrimaryCtxSetFlags, CUdevice device, unsigned flags);
CU_API(cuDevicePrimaryCtxSetFlags_v2, CUdevice device, unsigned flags);
CU_API(cuCtxCreate, CUcontext *context, unsigned flags, CUdevice device);
CU_API(cuCtxCreate_v2, CUcontext *context, unsigned flags, CUdevice device);
CU_API(cuCtxCreate_v3, CUcontext *context, void *affinity, int count,
       unsigned flags, CUdevice device);
CU_API(cuCtxCreate_v4, CUcontext *context, void *parameters, unsigned flags,
       CUdevice device);
CU_API(cuCtxDestroy, CUcontext context);
CU_API(cuCtxDestroy_v2, CUcontext context);
CU_API(cuCtxSetCurrent, CUcontext context);
CU_API(cuCtxGetCurrent, CUcontext *context);
CU_API(cuCtxPushCurrent, CUcontext context);
CU_API(cuCtxPushCurrent_v2, CUcontext context);
CU_API(cuCtxPopCurrent, CUcontext *context);
CU_API(cuCtxPopCurrent_v2, CUcontext *context);
CU_API(cuCtxGetDevice, CUdevice *device);
CU_API(cuCtxGetDevice_v2, CUdevice *device, CUcontext context);
CU_API(cuCtxSynchronize, void);
CU_API(cuCtxSynchronize_v2, CUcontext context);
CU_API(cuCtxGetApiVersion, CUcontext context, unsigned *version);
CU_API(cuCtxSetLimit, int limit, size_t value);
CU_API(cuCtxGetLimit, size_t *value, int limit);
CU_API(cuGreenCtxCreate, CUgreenCtx *green, CUdevResourceDesc resources,
       CUdevice device, unsigned flags);
CU_API(cuGreenCtxDestroy, CUgreenCtx green);

CU_API(cuMemGetInfo_v2, size_t *available, size_t *total);
CU_API(cuMemAlloc_v2, CUdeviceptr *pointer, size_t bytes);
CU_API(cuMemFree_v2, CUdeviceptr pointer);
CU_API(cuMemAllocPitch_v2, CUdeviceptr *pointer, size_t *pitch, size_t width,
       size_t height, unsigned element_size);
CU_API(cuMemAllocManaged, CUdeviceptr *pointer, size_t bytes, unsigned flags);
CU_API(cuMemGetAddressRange_v2, CUdeviceptr *base, size_t *size,
       CUdeviceptr pointer);
CU_API(cuPointerGetAttribute, void *value, int attribute, CUdeviceptr pointer);
CU_API(cuMemHostAlloc, void **pointer, size_t bytes, unsigned flags);
CU_API(cuMemAllocHost_v2, void **pointer, size_t bytes);
CU_API(cuMemFreeHost, void *pointer);

CU_API_PTSZ(cuMemAllocAsync, CUdeviceptr *pointer, size_t bytes,
	    CUstream stream);
CU_API_PTSZ(cuMemAllocFromPoolAsync, CUdeviceptr *pointer, size_t bytes,
	    CUmemoryPool pool, CUstream stream);
CU_API_PTSZ(cuMemFreeAsync, CUdeviceptr pointer, CUstream stream);
CU_API(cuMemPoolCreate, CUmemoryPool *pool, const CUmemPoolProps *properties);
CU_API(cuMemPoolDestroy, CUmemoryPool pool);
CU_API(cuMemPoolTrimTo, CUmemoryPool pool, size_t keep);
CU_API(cuMemPoolSetAttribute, CUmemoryPool pool, int attribute, void *value);
CU_API(cuMemPoolGetAttribute, CUmemoryPool pool, int attribute, void *value);
CU_API(cuDeviceGetDefaultMemPool, CUmemoryPool *pool, CUdevice device);
CU_API(cuDeviceGetMemPool, CUmemoryPool *pool, CUdevice device);
CU_API(cuDeviceSetMemPool, CUdevice device, CUmemoryPool pool);

CU_API(cuMemAddressReserve, CUdeviceptr *pointer, size_t size,
       size_t alignment, CUdeviceptr address, unsigned long long flags);
CU_API(cuMemAddressFree, CUdeviceptr pointer, size_t size);
CU_API(cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size,
       const CUmemAllocationProp *properties, unsigned long long flags);
CU_API(cuMemRelease, CUmemGenericAllocationHandle handle);
CU_API(cuMemMap, CUdeviceptr pointer, size_t size, size_t offset,
       CUmemGenericAllocationHandle handle, unsigned long long flags);
CU_API(cuMemUnmap, CUdeviceptr pointer, size_t size);
CU_API(cuMemSetAccess, CUdeviceptr pointer, size_t size,
       const CUmemAccessDesc *access, size_t count);
CU_API(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *handle,
       void *address);
CU_API(cuMemGetAllocationGranularity, size_t *granularity,
       const CUmemAllocationProp *properties, int option);
CU_API(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp *properties,
       CUmemGenericAllocationHandle handle);

CU_API(cuMemExportToShareableHandle, void *out,
       CUmemGenericAllocationHandle handle, int type,
       unsigned long long flags);
CU_API(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *handle,
       void *from, int type);
CU_API(cuMemPoolExportToShareableHandle, void *out, CUmemoryPool pool, int type,
       unsigned long long flags);
CU_API(cuMemPoolImportFromShareableHandle, CUmemoryPool *pool, void *from,
       int type, unsigned long long flags);
CU_API(cuMemPoolExportPointer, CUmemPoolPtrExportData *out,
       CUdeviceptr pointer);
CU_API(cuMemPoolImportPointer, CUdeviceptr *pointer, CUmemoryPool pool,
       CUmemPoolPtrExportData *data);
CU_API(cuIpcGetMemHandle, CUipcMemHandle *handle, CUdeviceptr pointer);
CU_API(cuIpcOpenMemHandle, CUdeviceptr *pointer, CUipcMemHandle handle,
       unsigned flags);
CU_API(cuIpcOpenMemHandle_v2, CUdeviceptr *pointer, CUipcMemHandle handle,
       unsigned flags);
CU_API(cuIpcCloseMemHandle, CUdeviceptr pointer);
CU_API(cuImportExternalMemory, CUexternalMemory *memory,
       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from);
CU_API(cuExternalMemoryGetMappedBuffer, CUdeviceptr *pointer,
       CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *part);
CU_API(cuDestroyExternalMemory, CUexternalMemory memory);
CU_API(cuMulticastCreate, CUmemGenericAllocationHandle *handle,
       const CUmulticastObjectProp *properties);
CU_API(cuMulticastAddDevice, CUmemGenericAllocationHandle multicast,
       CUdevice device);
CU_API(cuMulticastBindMem, CUmemGenericAllocationHandle multicast,
       size_t multicast_offset, CUmemGenericAllocationHandle memory,
       size_t memory_offset, size_t size, unsigned long long flags);

CU_API_PTSZ(cuMemMapArrayAsync, CUarrayMapInfo *infos, unsigned count,
	    CUstream stream);
CU_API(cuArrayCreate_v2, CUarray *array,
       const CUDA_ARRAY_DESCRIPTOR *description);
CU_API(cuArray3DCreate_v2, CUarray *array,
       const CUDA_ARRAY3D_DESCRIPTOR *description);
CU_API(cuArrayDestroy, CUarray array);
CU_API(cuArrayGetMemoryRequirements, CUDA_ARRAY_MEMORY_REQUIREMENTS *need,
       CUarray array, CUdevice device);
CU_API(cuMipmappedArrayCreate, CUmipmappedArray *array,
       const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned levels);
CU_API(cuMipmappedArrayDestroy, CUmipmappedArray array);
CU_API(cuMipmappedArrayGetMemoryRequirements,
       CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUmipmappedArray array,
       CUdevice device);

CU_API(cuStreamCreate, CUstream *stream, unsigned flags);
CU_API(cuStreamCreateWithPriority, CUstream *stream, unsigned flags,
       int priority);
CU_API(cuStreamDestroy_v2, CUstream stream);
CU_API_PTSZ(cuStreamSynchronize, CUstream stream);
CU_API_PTSZ(cuStreamQuery, CUstream stream);
CU_API_PTSZ(cuStreamGetCtx, CUstream stream, CUcontext *context);

#include "cuda_work_api.h"

#endif
