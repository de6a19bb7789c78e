/* The part of NVML that the library wraps or calls, from its public manual. */
#ifndef AQ_NVML_API_H
#define AQ_NVML_API_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

#define NVML_DEVICE_UUID_BUFFER_SIZE 96

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version; /* size of the struct, and 2 << 24 */
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");

#endif
