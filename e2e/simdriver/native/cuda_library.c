/*
 * Libraries. One is loaded when it is made if a context is current then,
 * otherwise when its first function is asked for.
 */
#include "cuda_module.h"

#include <stdlib.h>

#define LIBRARY_MAGIC 0x4c494252u

struct CUlib_st {
	uint32_t magic;
	uint64_t bytes;
	struct CUmod_st functions; /* its kernels, of no context */
	CUmodule modules[SIM_MAX_GPUS];
};

static CUresult module_of_locked(CUlibrary library, CUcontext context)
{
	CUmodule *module = &library->modules[context->device];

	if (*module != NULL && module_is_loaded(*module))
		return CUDA_SUCCESS;
	if (*module != NULL) /* what it was loaded into is gone */
		module_unload_locked(*module);
	*module = NULL;
	CUresult result = module_load_locked(module, context, library->bytes);
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
	made->bytes = module_cost(image);
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
	if (!module_read_image(path, image))
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
			module_unload_locked(library->modules[i]);
	module_free_functions_locked(&library->functions);
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
	CUfunction function = module_function_locked(&library->functions, name);
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
			*function = module_function_locked(
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
