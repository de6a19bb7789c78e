/* The simulated driver as most programs find it, and a context on its first
 * device. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "../src/functions.h"

CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr,
			     unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuStreamSynchronize(CUstream);

#define DRIVER_FUNCTIONS(X)           \
	X(cuInit)                     \
	X(cuDevicePrimaryCtxRetain)   \
	X(cuCtxSetCurrent)            \
	X(cuMemAlloc_v2)              \
	X(cuMemFree_v2)               \
	X(cuMemCreate)                \
	X(cuMemRelease)               \
	X(cuMemAddressReserve)        \
	X(cuMemAddressFree)           \
	X(cuMemMap)                   \
	X(cuMemUnmap)                 \
	X(cuMemAllocAsync)            \
	X(cuMemFreeAsync)             \
	X(cuStreamSynchronize)

static struct {
#define MEMBER(name) __typeof__(name) *name;
	DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} cuda;

static inline void driver_load(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (!driver)
		exit(3);
#define LOAD(name) cuda.name = dlsym(driver, #name);
	DRIVER_FUNCTIONS(LOAD)
#undef LOAD
}

static inline void driver_init(void)
{
	CUcontext context;

	if (cuda.cuInit(0) || cuda.cuDevicePrimaryCtxRetain(&context, 0) ||
	    cuda.cuCtxSetCurrent(context))
		_exit(3);
}
