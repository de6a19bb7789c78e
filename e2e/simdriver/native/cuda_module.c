/*
 * Modules and libraries. Any name is a function, see cuda_kernel.c; what is
 * loaded only matters for what it costs, which an image can say:
 *
 *	aliquot-sim-module bytes=<n>
 *
 * A library is loaded when it is made if a context is current then, otherwise
 * when its first function is asked for.
 */
#include "cuda_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE_MAGIC 0x4d4f4455u
#define LIBRARY_MAGIC 0x4c494252u

struct CUmod_st {
	uint32_t magic;
	CUcontext context;
	unsigned incarnation;
	bool of_library;
	CUfunction functions;
	struct region *region; /* NULL: costs nothing */
};

struct CUlib_st {
	uint32_t magic;
	uint64_t bytes;
	struct CUmod_st functions; /* its kernels, of no context */
	CUmodule modules[SIM_MAX_GPUS];
};

static const char signature[] = "aliquot-sim-module";

static uint64_t cost_of(const char *image)
{
	unsigned long long bytes = 0;

	if (strncmp(image, signature, strlen(signature)) == 0)
		sscanf(image + strlen(signature), " bytes=%llu", &bytes);
	return bytes;
}

static bool read_image(const char *path, char image[256])
{
	FILE *file = fopen(path, "re");

	if (file == NULL)
		return false;
	size_t n = fread(image, 1, 255, file);
	image[n] = '\0';
	fclose(file);
	return true;
}

/* The memory dies with the context, as all that lies in its list. */
static CUresult load_locked(CUmodule *module, CUcontext context, uint64_t bytes)
{
	CUmodule made = calloc(1, sizeof(*made));

	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct CUmod_st){ .magic = MODULE_MAGIC,
				   .context = context,
				   .incarnation = context->incarnation };
	if (bytes != 0 && bytes <= cuda.devices[context->device].capacity)
		made->region = region_new_locked(REGION_MODULE, bytes,
						 context->device);
	if (bytes != 0 && made->region == NULL) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (made->region != NULL) {
		made->region->context = context;
		if (!blocks_take_locked(context->device, made->region->span)) {
			region_free_locked(made->region);
			free(made);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (!region_place_locked(made->region)) {
			blocks_give_locked(context->device, made->region->span);
			region_free_locked(made->region);
			free(made);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*module = made;
	return CUDA_SUCCESS;
}

static bool is_loaded(CUmodule module)
{
	return module->context->alive &&
	       module->incarnation == module->context->incarnation;
}

static void free_functions(CUmodule module)
{
	while (module->functions != NULL) {
		CUfunction function = module->functions;
		module->functions = function->next;
		function_free_locked(function);
	}
}

static void unload_locked(CUmodule module)
{
	free_functions(module);
	if (module->region != NULL && is_loaded(module)) {
		blocks_give_locked(module->region->device,
				   module->region->span);
		region_remove_locked(module->region);
		region_free_locked(module->region);
	}
	module->magic = 0;
	free(module);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (module == NULL || image == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	result = load_locked(module, context, cost_of(image));
	cuda_unlock();
	return result;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
			    int *options, void **values)
{
	(void)count, (void)options, (void)values;
	return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	char image[256];
	CUresult result;

	if (context_current(&result) == NULL)
		return result;
	if (path == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!read_image(path, image))
		return CUDA_ERROR_FILE_NOT_FOUND;
	return cuModuleLoadData(module, image);
}

static CUresult module_check(CUmodule module)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (module == NULL || module->magic != MODULE_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	return is_loaded(module) ? CUDA_SUCCESS :
				   CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult result = module_check(module);

	if (result == CUDA_SUCCESS && module->of_library)
		return CUDA_ERROR_NOT_PERMITTED;
	if (result == CUDA_SUCCESS)
		result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	unload_locked(module);
	cuda_unlock();
	return CUDA_SUCCESS;
}

/* One name in one module is always the same function. */
static CUfunction function_locked(CUmodule module, const char *name)
{
	CUfunction function = module->functions;

	while (function != NULL && strcmp(function->name, name) != 0)
		function = function->next;
	if (function != NULL)
		return function;
	function = function_new_locked(module, name);
	if (function == NULL)
		return NULL;
	function->next = module->functions;
	module->functions = function;
	return function;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module,
			     const char *name)
{
	CUresult result = module_check(module);

	if (result != CUDA_SUCCESS)
		return result;
	if (function == NULL || name == NULL || name[0] == '\0')
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	*function = function_locked(module, name);
	cuda_unlock();
	return *function == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (module == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (function_is(function))
		*module = function->module;
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	cuda_unlock();
	return result;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (function_is(function))
		*name = function->name;
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	cuda_unlock();
	return result;
}

static CUresult module_of_locked(CUlibrary library, CUcontext context)
{
	CUmodule *module = &library->modules[context->device];

	if (*module != NULL && is_loaded(*module))
		return CUDA_SUCCESS;
	if (*module != NULL) /* what it was loaded into is gone */
		unload_locked(*module);
	*module = NULL;
	CUresult result = load_locked(module, context, library->bytes);
	if (result == CUDA_SUCCESS)
		(*module)->of_library = true;
	return result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image,
			   int *jit_options, void **jit_values,
			   unsigned jit_count, int *options, void **values,
			   unsigned count)
{
	CUresult result = cuda_ready(), ignored;

	(void)jit_options, (void)jit_values, (void)jit_count;
	(void)options, (void)values, (void)count;
	if (result != CUDA_SUCCESS)
		return result;
	if (library == NULL || image == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUlibrary made = calloc(1, sizeof(*made));
	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->magic = LIBRARY_MAGIC;
	made->bytes = cost_of(image);
	CUcontext context = context_current(&ignored);
	if (context != NULL) {
		cuda_lock();
		result = module_of_locked(made, context);
		cuda_unlock();
	}
	if (result == CUDA_SUCCESS)
		*library = made;
	else
		free(made);
	return result;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path,
			       int *jit_options, void **jit_values,
			       unsigned jit_count, int *options, void **values,
			       unsigned count)
{
	char image[256];
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (path == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!read_image(path, image))
		return CUDA_ERROR_FILE_NOT_FOUND;
	return cuLibraryLoadData(library, image, jit_options, jit_values,
				 jit_count, options, values, count);
}

static CUresult library_check(CUlibrary library)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	return library != NULL && library->magic == LIBRARY_MAGIC ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult result = library_check(library);

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		if (library->modules[i] != NULL)
			unload_locked(library->modules[i]);
	free_functions(&library->functions);
	library->magic = 0;
	cuda_unlock();
	free(library);
	return CUDA_SUCCESS;
}

/* A kernel belongs to no context; it can be launched in place of a function. */
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library,
			    const char *name)
{
	CUresult result = library_check(library);

	if (result != CUDA_SUCCESS)
		return result;
	if (kernel == NULL || name == NULL || name[0] == '\0')
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	CUfunction function = function_locked(&library->functions, name);
	if (function != NULL)
		function->library = library;
	*kernel = (CUkernel)function;
	cuda_unlock();
	return function == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	CUresult result = library_check(library);

	if (result != CUDA_SUCCESS)
		return result;
	CUcontext context = context_current(&result);
	if (context == NULL)
		return result;
	if (module == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = module_of_locked(library, context);
	if (result == CUDA_SUCCESS)
		*module = library->modules[context->device];
	cuda_unlock();
	return result;
}

/* The function of a kernel in the current context, which loads it. */
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	CUfunction of = (CUfunction)kernel;
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (function == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (!function_is(of) || of->library == NULL) {
		result = CUDA_ERROR_INVALID_HANDLE;
	} else {
		result = module_of_locked(of->library, context);
		if (result == CUDA_SUCCESS) {
			*function = function_locked(
				of->library->modules[context->device],
				of->name);
			if (*function == NULL)
				result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	cuda_unlock();
	return result;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	return cuFuncGetName(name, (CUfunction)kernel);
}
