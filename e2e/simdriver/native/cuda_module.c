/*
 * Modules. Any name is a function, see cuda_kernel.c; what is
 * loaded only matters for what it costs, which an image can say:
 *
 *	aliquot-sim-module bytes=<n>
 */
#include "cuda_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE_MAGIC 0x4d4f4455u

static const char signature[] = "aliquot-sim-module";

uint64_t module_cost(const char *image)
{
	unsigned long long bytes = 0;

	if (strncmp(image, signature, strlen(signature)) == 0)
		sscanf(image + strlen(signature), " bytes=%llu", &bytes);
	return bytes;
}

bool module_read_image(const char *path, char image[256])
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
CUresult module_load_locked(CUmodule *module, CUcontext context,
			    uint64_t bytes)
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

bool module_is_loaded(CUmodule module)
{
	return module->context->alive &&
	       module->incarnation == module->context->incarnation;
}

void module_free_functions_locked(CUmodule module)
{
	while (module->functions != NULL) {
		CUfunction function = module->functions;
		module->functions = function->next;
		function_free_locked(function);
	}
}

void module_unload_locked(CUmodule module)
{
	module_free_functions_locked(module);
	if (module->region != NULL && module_is_loaded(module)) {
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
	result = module_load_locked(module, context, module_cost(image));
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
	if (!module_read_image(path, image))
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
	return module_is_loaded(module) ? CUDA_SUCCESS :
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
	module_unload_locked(module);
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUfunction module_function_locked(CUmodule module, const char *name)
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
	*function = module_function_locked(module, name);
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
