/*
 * Sizes, places and values in the library's own declarations, or with CUDA_H
 * defined in CUDA's headers: what the two print must be the same. With NVML it
 * prints those of NVML too.
 */
#include <stddef.h>
#include <stdio.h>

#ifdef CUDA_H
#include <cuda.h>
#define CU_ARRAY_SPARSE_LEVEL CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL
#define CU_ARRAY_SPARSE_MIPTAIL CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL
#else
#include "../../src/cuda_api.h"
#endif
#if defined(NVML) && defined(CUDA_H)
#include <nvml.h>
#elif defined(NVML)
#include "../../src/nvml_api.h"
#endif

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define PLACE(type, field) \
	printf(#type "." #field " %zu\n", offsetof(type, field))
#define VALUE(name) printf(#name " %lld\n", (long long)(name))

static void print_sizes(void)
{
	SIZE(CUdeviceptr);
	SIZE(CUmemGenericAllocationHandle);
	SIZE(CUuuid);
	SIZE(CUmemLocation);
	SIZE(CUmemAllocationProp);
	SIZE(CUmemPoolProps);
	SIZE(CUDA_ARRAY_DESCRIPTOR);
	SIZE(CUDA_ARRAY3D_DESCRIPTOR);
	SIZE(CUDA_ARRAY_MEMORY_REQUIREMENTS);
	SIZE(CUarrayMapInfo);
	SIZE(CUDA_MEM_ALLOC_NODE_PARAMS);
	SIZE(CUDA_GRAPH_INSTANTIATE_PARAMS);
	SIZE(CUlaunchConfig);
	SIZE(CUDA_LAUNCH_PARAMS);
}

static void print_places(void)
{
	PLACE(CUmemAllocationProp, requestedHandleTypes);
	PLACE(CUmemAllocationProp, location);
	PLACE(CUmemPoolProps, location);
	PLACE(CUmemPoolProps, maxSize);
	PLACE(CUDA_ARRAY_DESCRIPTOR, Format);
	PLACE(CUDA_ARRAY3D_DESCRIPTOR, Format);
	PLACE(CUDA_ARRAY3D_DESCRIPTOR, Flags);
	PLACE(CUarrayMapInfo, resource);
	PLACE(CUarrayMapInfo, subresourceType);
	PLACE(CUarrayMapInfo, subresource);
	PLACE(CUarrayMapInfo, memOperationType);
	PLACE(CUarrayMapInfo, memHandle);
	PLACE(CUarrayMapInfo, offset);
	PLACE(CUarrayMapInfo, deviceBitMask);
	PLACE(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
	PLACE(CUDA_MEM_ALLOC_NODE_PARAMS, dptr);
	PLACE(CUDA_GRAPH_INSTANTIATE_PARAMS, hUploadStream);
	PLACE(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out);
	PLACE(CUlaunchConfig, blockDimX);
	PLACE(CUlaunchConfig, hStream);
	PLACE(CUDA_LAUNCH_PARAMS, gridDimX);
	PLACE(CUDA_LAUNCH_PARAMS, hStream);
}

static void print_values(void)
{
	VALUE(CUDA_ERROR_OUT_OF_MEMORY);
	VALUE(CUDA_ERROR_NOT_INITIALIZED);
	VALUE(CUDA_ERROR_NOT_FOUND);
	VALUE(CUDA_ERROR_NOT_READY);
	VALUE(CU_MEM_LOCATION_TYPE_DEVICE);
	VALUE(CUDA_ARRAY3D_LAYERED);
	VALUE(CUDA_ARRAY3D_CUBEMAP);
	VALUE(CUDA_ARRAY3D_SPARSE);
	VALUE(CUDA_ARRAY3D_DEFERRED_MAPPING);
	VALUE(CU_ARRAY_SPARSE_LEVEL);
	VALUE(CU_ARRAY_SPARSE_MIPTAIL);
	VALUE(CU_MEM_OPERATION_TYPE_MAP);
	VALUE(CU_MEM_OPERATION_TYPE_UNMAP);
	VALUE(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	VALUE(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
	VALUE(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
	VALUE(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
	VALUE(CU_LIMIT_PRINTF_FIFO_SIZE);
	VALUE(CU_LIMIT_MALLOC_HEAP_SIZE);
	VALUE(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	VALUE(CU_STREAM_CAPTURE_STATUS_NONE);
	VALUE(CU_STREAM_CAPTURE_MODE_RELAXED);
	VALUE(CU_EVENT_DEFAULT);
	VALUE(CU_GET_PROC_ADDRESS_LEGACY_STREAM);
	VALUE(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
	VALUE((size_t)CU_STREAM_PER_THREAD);
}

static void print_nvml(void)
{
#ifdef NVML
	SIZE(nvmlMemory_t);
	SIZE(nvmlMemory_v2_t);
	SIZE(nvmlProcessInfo_v1_t);
	SIZE(nvmlProcessInfo_t);
	SIZE(nvmlProcessDetail_v1_t);
	SIZE(nvmlProcessDetailList_t);
	SIZE(nvmlProcessUtilizationSample_t);
	SIZE(nvmlProcessUtilizationInfo_v1_t);
	SIZE(nvmlProcessesUtilizationInfo_t);
	PLACE(nvmlProcessUtilizationInfo_v1_t, smUtil);
	PLACE(nvmlProcessesUtilizationInfo_t, procUtilArray);
#endif
}

int main(void)
{
	print_sizes();
	print_places();
	print_values();
	print_nvml();
	return 0;
}
