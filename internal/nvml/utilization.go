package nvml

/*
#cgo linux LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef int (*by_uuid)(const char *, void **);

struct aliquot_info {
	uint64_t time;
	uint32_t pid, sm, memory, encoder, decoder, jpeg, ofa;
};

struct aliquot_infos {
	uint32_t version, count;
	uint64_t since;
	struct aliquot_info *array;
};

typedef int (*utilization_info)(void *, struct aliquot_infos *);

enum { VERSION = sizeof(struct aliquot_infos) | 1 << 24 };

_Static_assert(sizeof(struct aliquot_info) == 40, "nvmlProcessUtilizationInfo_v1_t");
_Static_assert(sizeof(struct aliquot_infos) == 24, "nvmlProcessesUtilizationInfo_v1_t");

// go-nvml has loaded NVML with its symbols for all.
static int aliquot_utilization(const char *uuid, uint64_t since, struct aliquot_info *array, uint32_t *count)
{
	by_uuid open = (by_uuid)dlsym(RTLD_DEFAULT, "nvmlDeviceGetHandleByUUID");
	utilization_info ask = (utilization_info)dlsym(RTLD_DEFAULT, "nvmlDeviceGetProcessesUtilizationInfo");
	struct aliquot_infos infos = { VERSION, *count, since, array };
	void *device;
	int result;

	if (!open || !ask)
		return 13; // NVML_ERROR_FUNCTION_NOT_FOUND
	result = open(uuid, &device);
	if (!result)
		result = ask(device, &infos);
	*count = infos.count;
	return result;
}
*/
import "C"

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"aliquot.dev/aliquot/internal/gpu"
)

// mostProcesses bounds what is believed of how many processes use a GPU.
const mostProcesses = 1 << 16

// processesUtilizationInfo calls nvmlDeviceGetProcessesUtilizationInfo. go-nvml's own binding has no room for the answer,
// and so never gets one. NVML must be open. "Nothing newer" is an empty list.
func processesUtilizationInfo(uuid string, sinceUS uint64) ([]gpu.Utilization, nvml.Return) {
	name := C.CString(uuid)
	defer C.free(unsafe.Pointer(name))
	var count C.uint32_t
	ret := nvml.Return(C.aliquot_utilization(name, C.uint64_t(sinceUS), nil, &count))
	for ret == nvml.ERROR_INSUFFICIENT_SIZE && count > 0 && count <= mostProcesses {
		// Allocated by C, since the struct that holds the pointer to it is C's.
		room := count
		array := (*C.struct_aliquot_info)(C.calloc(C.size_t(room), C.size_t(unsafe.Sizeof(C.struct_aliquot_info{}))))
		ret = nvml.Return(C.aliquot_utilization(name, C.uint64_t(sinceUS), array, &count))
		samples := make([]gpu.Utilization, 0, room)
		for _, s := range unsafe.Slice(array, min(room, count)) {
			if s.pid != 0 {
				samples = append(samples, gpu.Utilization{PID: int(s.pid), TimeUS: uint64(s.time), SMPercent: uint32(s.sm)})
			}
		}
		C.free(unsafe.Pointer(array))
		if ret == nvml.SUCCESS {
			return samples, ret
		}
		count = min(max(count, room+1), mostProcesses+1)
	}
	if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INSUFFICIENT_SIZE {
		return nil, nvml.SUCCESS
	}
	return nil, ret
}
