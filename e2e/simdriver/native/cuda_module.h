/* What the files about modules and libraries share. */
#ifndef SIM_CUDA_MODULE_H
#define SIM_CUDA_MODULE_H

#include "cuda_work.h"

struct CUmod_st {
	uint32_t magic;
	CUcontext context;
	unsigned incarnation;
	bool of_library;
	CUfunction functions;
	struct region *region; /* NULL: costs nothing */
};

/* What an image says that it costs. */
uint64_t module_cost(const char *image);
/* As much of a file as can say that. */
bool module_read_image(const char *path, char image[256]);
CUresult module_load_locked(CUmodule *module, CUcontext context,
			    uint64_t bytes);
/* False: its context is gone, and its memory with it. */
bool module_is_loaded(CUmodule module);
void module_unload_locked(CUmodule module);
/* One name in one module is always the same function. */
CUfunction module_function_locked(CUmodule module, const char *name);
void module_free_functions_locked(CUmodule module);

#endif
