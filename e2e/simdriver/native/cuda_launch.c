/* Launching functions, in all the ways there are. */
#include "cuda_work.h"

static CUresult launch_locked(CUfunction function, CUstream stream)
{
	struct kernel *kernel = kernel_of_locked(function);
	struct capture *capture;
	struct piece piece;
	CUresult result = capture_enter_locked(stream, &capture);

	if (result != CUDA_SUCCESS)
		return result;
	if (capture != NULL)
		return capture_kernel_locked(stream, kernel);
	result = kernel_piece_locked(kernel, stream->context->device, &piece);
	if (result != CUDA_SUCCESS)
		return result;
	return work_push_locked(stream, &piece);
}

static CUresult launch(CUfunction function, CUstream handle)
{
	CUresult result;

	cuda_lock();
	CUstream stream = stream_find_locked(handle, &result);
	if (stream != NULL)
		result = launch_locked(function, stream);
	cuda_unlock();
	return result;
}

static bool is_empty(unsigned x, unsigned y, unsigned z)
{
	return x == 0 || y == 0 || z == 0;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
			unsigned grid_z, unsigned block_x, unsigned block_y,
			unsigned block_z, unsigned shared_bytes,
			CUstream stream, void **parameters, void **extra)
{
	CUresult result;

	(void)shared_bytes, (void)parameters, (void)extra;
	if (context_current(&result) == NULL)
		return result;
	if (is_empty(grid_x, grid_y, grid_z) ||
	    is_empty(block_x, block_y, block_z))
		return CUDA_ERROR_INVALID_VALUE;
	return launch(function, stream);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x,
			     unsigned grid_y, unsigned grid_z, unsigned block_x,
			     unsigned block_y, unsigned block_z,
			     unsigned shared_bytes, CUstream stream,
			     void **parameters, void **extra)
{
	return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x,
			      block_y, block_z, shared_bytes,
			      per_thread(stream), parameters, extra);
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function,
			      bool ptsz)
{
	CUresult result;

	if (context_current(&result) == NULL)
		return result;
	if (config == NULL ||
	    is_empty(config->gridDimX, config->gridDimY, config->gridDimZ) ||
	    is_empty(config->blockDimX, config->blockDimY, config->blockDimZ))
		return CUDA_ERROR_INVALID_VALUE;
	return launch(function, ptsz ? per_thread(config->hStream) :
				       config->hStream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
			  void **parameters, void **extra)
{
	(void)parameters, (void)extra;
	return launch_config(config, function, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config,
			       CUfunction function, void **parameters,
			       void **extra)
{
	(void)parameters, (void)extra;
	return launch_config(config, function, true);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x,
				   unsigned grid_y, unsigned grid_z,
				   unsigned block_x, unsigned block_y,
				   unsigned block_z, unsigned shared_bytes,
				   CUstream stream, void **parameters)
{
	return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x,
			      block_y, block_z, shared_bytes, stream,
			      parameters, NULL);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned grid_x,
					unsigned grid_y, unsigned grid_z,
					unsigned block_x, unsigned block_y,
					unsigned block_z, unsigned shared_bytes,
					CUstream stream, void **parameters)
{
	return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x,
			      block_y, block_z, shared_bytes,
			      per_thread(stream), parameters, NULL);
}

/* One function on each of several devices; stream 0 is none of theirs. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches,
					      unsigned count, unsigned flags)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (launches == NULL || count == 0 || flags > 3)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		const CUDA_LAUNCH_PARAMS *one = &launches[i];
		if (one->hStream == NULL || one->hStream == CU_STREAM_LEGACY ||
		    is_empty(one->gridDimX, one->gridDimY, one->gridDimZ) ||
		    is_empty(one->blockDimX, one->blockDimY, one->blockDimZ))
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = launch(launches[i].function, launches[i].hStream);
	return result;
}

/* What follows is the interface of CUDA 3 and before. */

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
	CUresult result;

	if (context_current(&result) == NULL)
		return result;
	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (function_is(function))
		function->shaped = true;
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height,
			   CUstream stream)
{
	CUresult result;

	if (context_current(&result) == NULL)
		return result;
	if (width <= 0 || height <= 0 ||
	    (function_is(function) && !function->shaped))
		return CUDA_ERROR_INVALID_VALUE;
	return launch(function, stream);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	return cuLaunchGridAsync(function, width, height, NULL);
}

CUresult cuLaunch(CUfunction function)
{
	return cuLaunchGridAsync(function, 1, 1, NULL);
}
