/*
 * The part of the CUDA driver API that the library wraps or calls: names,
 * values and signatures as NVIDIA's public reference manual gives them.
 */
#ifndef AQ_CUDA_API_H
#define AQ_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#define AQ_EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1; /* of the calls older than CUDA 3.2 */
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUexecAffinityParam_st CUexecAffinityParam; /* only passed on */
typedef struct CUctxCreateParams_st CUctxCreateParams;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUstream_st *CUstream;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
};

enum {
	CU_MEM_LOCATION_TYPE_DEVICE = 1,

	CUDA_ARRAY3D_LAYERED = 0x01,
	CUDA_ARRAY3D_CUBEMAP = 0x04,
	CUDA_ARRAY3D_SPARSE = 0x40,
	CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,

	CU_ARRAY_SPARSE_LEVEL = 0,
	CU_ARRAY_SPARSE_MIPTAIL = 1,
	CU_MEM_OPERATION_TYPE_MAP = 1,
	CU_MEM_OPERATION_TYPE_UNMAP = 2,

	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
	CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,

	CU_LIMIT_PRINTF_FIFO_SIZE = 1,
	CU_LIMIT_MALLOC_HEAP_SIZE = 2,

	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,

	CU_STREAM_CAPTURE_STATUS_NONE = 0,

	CU_STREAM_CAPTURE_MODE_RELAXED = 2,

	CU_EVENT_DEFAULT = 0,

	CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
	CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,

	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
};

#define CU_STREAM_PER_THREAD ((CUstream)0x2) /* 0 and 1: the legacy stream */

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	int type;
	int id;
} CUmemLocation;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
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
	size_t Width, Height;
	int Format;
	unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	unsigned Width, Height;
	int Format;
	unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
	size_t Width, Height, Depth;
	int Format;
	unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
	unsigned Width, Height, Depth;
	int Format;
	unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
	size_t size, alignment;
	unsigned reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct {
	int resourceType;
	void *resource; /* an array, mipmapped or not */
	int subresourceType;
	/* A level: level, layer, offset and extent in three dimensions, all
	 * unsigned. A tail: layer, then offset and size of 64 bits. */
	unsigned subresource[8] __attribute__((aligned(8)));
	int memOperationType;
	int memHandleType;
	CUmemGenericAllocationHandle memHandle;
	unsigned long long offset;
	unsigned deviceBitMask, flags, reserved[2];
} CUarrayMapInfo;

typedef struct {
	CUmemPoolProps poolProps;
	const void *accessDescs;
	size_t accessDescCount;
	size_t bytesize;
	CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
	cuuint64_t flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120,
	       "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == 32,
	       "CUDA_GRAPH_INSTANTIATE_PARAMS");
_Static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR) == 24, "CUDA_ARRAY_DESCRIPTOR");
_Static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
_Static_assert(sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS) == 32,
	       "CUDA_ARRAY_MEMORY_REQUIREMENTS");
_Static_assert(sizeof(CUarrayMapInfo) == 96, "CUarrayMapInfo");

typedef struct {
	unsigned gridDimX, gridDimY, gridDimZ;
	unsigned blockDimX, blockDimY, blockDimZ;
	unsigned sharedMemBytes;
	CUstream hStream;
	void *attrs;
	unsigned numAttrs;
} CUlaunchConfig;

typedef struct {
	CUfunction function;
	unsigned gridDimX, gridDimY, gridDimZ;
	unsigned blockDimX, blockDimY, blockDimZ;
	unsigned sharedMemBytes;
	CUstream hStream;
	void **kernelParams;
} CUDA_LAUNCH_PARAMS;

_Static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig");
_Static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "CUDA_LAUNCH_PARAMS");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");

#endif
