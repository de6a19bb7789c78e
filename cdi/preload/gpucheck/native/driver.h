/* How the programs here call the driver: by name, as many frameworks do. */
#ifndef AQ_GPUCHECK_DRIVER_H
#define AQ_GPUCHECK_DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void *driver;

static inline void *driver_find(const char *name)
{
	void *function;

	if (!driver && !(driver = dlopen("libcuda.so.1", RTLD_NOW))) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	function = dlsym(driver, name);
	if (!function) {
		fprintf(stderr, "the driver has no %s\n", name);
		exit(2);
	}
	return function;
}

/* cu(name, (types), arguments...): the result. */
#define cu(name, types, ...) (((int(*) types)driver_find(#name))(__VA_ARGS__))

/* The same, where no success is no use. */
#define need(name, types, ...)                                          \
	do {                                                            \
		int result_ = cu(name, types, __VA_ARGS__);             \
		if (result_) {                                          \
			fprintf(stderr, #name ": error %d\n", result_); \
			exit(2);                                        \
		}                                                       \
	} while (0)

static inline void driver_start(int *device, void **context)
{
	need(cuInit, (unsigned), 0);
	need(cuDeviceGet, (int *, int), device, 0);
	need(cuDevicePrimaryCtxRetain, (void **, int), context, *device);
	need(cuCtxSetCurrent, (void *), *context);
}

#endif
