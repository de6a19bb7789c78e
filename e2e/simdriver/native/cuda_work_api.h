/* What cuda_api.h has of functions, streams, events and graphs. */
#ifndef SIM_CUDA_WORK_API_H
#define SIM_CUDA_WORK_API_H

#include "cuda_api.h"

typedef struct CUevent_st *CUevent;
typedef struct CUkern_st *CUkernel;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

enum { /* CUevent_flags, CUevent_record_flags, CUevent_wait_flags */
	CU_EVENT_BLOCKING_SYNC = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_EVENT_INTERPROCESS = 4,

	CU_EVENT_RECORD_EXTERNAL = 1,

	CU_EVENT_WAIT_EXTERNAL = 1,
};

enum { /* CUstreamCaptureStatus and CUstreamCaptureMode */
	CU_STREAM_CAPTURE_STATUS_NONE = 0,
	CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
	CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,

	CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum { /* CUgraphNodeType */
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_EMPTY = 5,
	CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
	CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
};

enum { /* CUgraphInstantiate_flags */
	CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
	CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
	CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
	CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8,
};

enum { /* CUgraphMem_attribute */
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
	CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3,
};

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

typedef struct {
	CUfunction func;
	unsigned gridDimX, gridDimY, gridDimZ;
	unsigned blockDimX, blockDimY, blockDimZ;
	unsigned sharedMemBytes;
	void **kernelParams, **extra;
	CUkernel kern; /* the second version and later have these */
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;

typedef struct {
	CUmemPoolProps poolProps;
	const CUmemAccessDesc *accessDescs;
	size_t accessDescCount, bytesize;
	CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
	int type;
	int reserved0[3];
	union {
		long long reserved1[29];
		CUDA_KERNEL_NODE_PARAMS_v2 kernel;
		CUDA_MEM_ALLOC_NODE_PARAMS alloc;
		CUdeviceptr free;
		CUevent event;
	};
	long long reserved2;
} CUgraphNodeParams;

typedef struct {
	unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

typedef struct {
	uint64_t flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

_Static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120,
	       "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "CUgraphNodeParams");
CU_API_PTSZ(cuStreamWaitEvent, CUstream stream, CUevent event, unsigned flags);

CU_API(cuEventCreate, CUevent *event, unsigned flags);
CU_API(cuEventDestroy_v2, CUevent event);
CU_API_PTSZ(cuEventRecord, CUevent event, CUstream stream);
CU_API_PTSZ(cuEventRecordWithFlags, CUevent event, CUstream stream,
	    unsigned flags);
CU_API(cuEventQuery, CUevent event);
CU_API(cuEventSynchronize, CUevent event);
CU_API(cuEventElapsedTime, float *milliseconds, CUevent start, CUevent end);
CU_API(cuEventElapsedTime_v2, float *milliseconds, CUevent start, CUevent end);

CU_API(cuModuleLoad, CUmodule *module, const char *path);
CU_API(cuModuleLoadData, CUmodule *module, const void *image);
CU_API(cuModuleLoadDataEx, CUmodule *module, const void *image, unsigned count,
       int *options, void **values);
CU_API(cuModuleLoadFatBinary, CUmodule *module, const void *image);
CU_API(cuModuleUnload, CUmodule module);
CU_API(cuModuleGetFunction, CUfunction *function, CUmodule module,
       const char *name);
CU_API(cuFuncGetModule, CUmodule *module, CUfunction function);
CU_API(cuFuncGetName, const char **name, CUfunction function);
CU_API(cuLibraryLoadData, CUlibrary *library, const void *image,
       int *jit_options, void **jit_values, unsigned jit_count, int *options,
       void **values, unsigned count);
CU_API(cuLibraryLoadFromFile, CUlibrary *library, const char *path,
       int *jit_options, void **jit_values, unsigned jit_count, int *options,
       void **values, unsigned count);
CU_API(cuLibraryUnload, CUlibrary library);
CU_API(cuLibraryGetKernel, CUkernel *kernel, CUlibrary library,
       const char *name);
CU_API(cuLibraryGetModule, CUmodule *module, CUlibrary library);
CU_API(cuKernelGetFunction, CUfunction *function, CUkernel kernel);
CU_API(cuKernelGetName, const char **name, CUkernel kernel);

CU_API_PTSZ(cuLaunchKernel, CUfunction function, unsigned grid_x,
	    unsigned grid_y, unsigned grid_z, unsigned block_x,
	    unsigned block_y, unsigned block_z, unsigned shared_bytes,
	    CUstream stream, void **parameters, void **extra);
CU_API_PTSZ(cuLaunchKernelEx, const CUlaunchConfig *config,
	    CUfunction function, void **parameters, void **extra);
CU_API_PTSZ(cuLaunchCooperativeKernel, CUfunction function, unsigned grid_x,
	    unsigned grid_y, unsigned grid_z, unsigned block_x,
	    unsigned block_y, unsigned block_z, unsigned shared_bytes,
	    CUstream stream, void **parameters);
CU_API(cuLaunchCooperativeKernelMultiDevice, CUDA_LAUNCH_PARAMS *launches,
       unsigned count, unsigned flags);
CU_API(cuFuncSetBlockShape, CUfunction function, int x, int y, int z);
CU_API(cuLaunch, CUfunction function);
CU_API(cuLaunchGrid, CUfunction function, int width, int height);
CU_API(cuLaunchGridAsync, CUfunction function, int width, int height,
       CUstream stream);

CU_API_PTSZ(cuStreamBeginCapture_v2, CUstream stream, int mode);
CU_API_PTSZ(cuStreamEndCapture, CUstream stream, CUgraph *graph);
CU_API_PTSZ(cuStreamIsCapturing, CUstream stream, int *status);
CU_API_PTSZ(cuStreamGetCaptureInfo_v2, CUstream stream, int *status,
	    uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
	    size_t *count);
CU_API_PTSZ(cuStreamGetCaptureInfo_v3, CUstream stream, int *status,
	    uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
	    const CUgraphEdgeData **edges, size_t *count);
CU_API(cuThreadExchangeStreamCaptureMode, int *mode);

CU_API(cuGraphCreate, CUgraph *graph, unsigned flags);
CU_API(cuGraphDestroy, CUgraph graph);
CU_API(cuGraphGetNodes, CUgraph graph, CUgraphNode *nodes, size_t *count);
CU_API(cuGraphNodeGetType, CUgraphNode node, int *type);
CU_API(cuGraphAddEmptyNode, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, size_t count);
CU_API(cuGraphAddKernelNode, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, size_t count, const void *parameters);
CU_API(cuGraphAddKernelNode_v2, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, size_t count,
       const CUDA_KERNEL_NODE_PARAMS_v2 *parameters);
CU_API(cuGraphAddEventRecordNode, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, size_t count, CUevent event);
CU_API(cuGraphAddMemAllocNode, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, size_t count,
       CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CU_API(cuGraphMemAllocNodeGetParams, CUgraphNode node,
       CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CU_API(cuGraphAddMemFreeNode, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, size_t count, CUdeviceptr pointer);
CU_API(cuGraphAddNode, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, size_t count,
       CUgraphNodeParams *parameters);
CU_API(cuGraphAddNode_v2, CUgraphNode *node, CUgraph graph,
       const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
       size_t count, CUgraphNodeParams *parameters);
CU_API(cuGraphInstantiate_v2, CUgraphExec *exec, CUgraph graph,
       CUgraphNode *error, char *log, size_t log_size);
CU_API(cuGraphInstantiateWithFlags, CUgraphExec *exec, CUgraph graph,
       unsigned long long flags);
CU_API_PTSZ(cuGraphInstantiateWithParams, CUgraphExec *exec, CUgraph graph,
	    CUDA_GRAPH_INSTANTIATE_PARAMS *parameters);
CU_API_PTSZ(cuGraphUpload, CUgraphExec exec, CUstream stream);
CU_API_PTSZ(cuGraphLaunch, CUgraphExec exec, CUstream stream);
CU_API(cuGraphExecDestroy, CUgraphExec exec);
CU_API(cuDeviceGetGraphMemAttribute, CUdevice device, int attribute,
       void *value);
CU_API(cuDeviceSetGraphMemAttribute, CUdevice device, int attribute,
       void *value);
CU_API(cuDeviceGraphMemTrim, CUdevice device);

#endif
