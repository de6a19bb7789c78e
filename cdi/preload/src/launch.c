/*
 * The calls that put work on a GPU. Copies and fills are not among them: the
 * copy engines are not what a share of cores is of.
 */
#include "cores.h"
#include "functions.h"
#include "graph.h"

/* Each wrapper names its stream, what it launches and the size of that. */
#define LAUNCH(name, suffix, s, work, size, call)                      \
	do {                                                           \
		struct aq_launch launch_ = { NULL, { s, suffix } };    \
		CUresult result_;                                      \
								       \
		AQ_ENTER(name);                                        \
		if (AQ_LIKELY(!aq_cores_limited()))                    \
			return aq_real.call;                           \
		aq_launch_begin(&launch_, work, size);                 \
		result_ = aq_real.call;                                \
		aq_launch_end(&launch_, result_ == CUDA_SUCCESS);      \
		return result_;                                        \
	} while (0)

#define BLOCKS(x, y, z) ((uint64_t)(x) * (y) * (z))

#define LAUNCH_KERNEL(name, per_thread)                                        \
	CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz,     \
		      unsigned bx, unsigned by, unsigned bz, unsigned shared,  \
		      CUstream stream, void **parameters, void **extra)        \
	{                                                                      \
		LAUNCH(name, per_thread, stream, f,                            \
		       aq_cost_size(BLOCKS(gx, gy, gz), BLOCKS(bx, by, bz)),   \
		       name(f, gx, gy, gz, bx, by, bz, shared, stream,         \
			    parameters, extra));                               \
	}

LAUNCH_KERNEL(cuLaunchKernel, false)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, true)

#define LAUNCH_COOPERATIVE(name, per_thread)                                   \
	CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz,     \
		      unsigned bx, unsigned by, unsigned bz, unsigned shared,  \
		      CUstream stream, void **parameters)                      \
	{                                                                      \
		LAUNCH(name, per_thread, stream, f,                            \
		       aq_cost_size(BLOCKS(gx, gy, gz), BLOCKS(bx, by, bz)),   \
		       name(f, gx, gy, gz, bx, by, bz, shared, stream,         \
			    parameters));                                      \
	}

LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

static unsigned config_size(const CUlaunchConfig *c)
{
	return c ? aq_cost_size(BLOCKS(c->gridDimX, c->gridDimY, c->gridDimZ),
				BLOCKS(c->blockDimX, c->blockDimY,
				       c->blockDimZ))
		 : 0;
}

#define LAUNCH_EX(name, per_thread)                                            \
	CUresult name(const CUlaunchConfig *config, CUfunction f,              \
		      void **parameters, void **extra)                         \
	{                                                                      \
		LAUNCH(name, per_thread, config ? config->hStream : NULL, f,   \
		       config_size(config),                                    \
		       name(config, f, parameters, extra));                    \
	}

LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

/* It may take memory for its allocations too; that is reserved when there is
 * nothing more to wait for. */
#define LAUNCH_GRAPH(name, per_thread)                                         \
	CUresult name(CUgraphExec graph, CUstream stream)                      \
	{                                                                      \
		struct aq_launch launch = { NULL, { stream, per_thread } };    \
		CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                    \
		struct aq_graph_call memory;                                   \
									       \
		AQ_ENTER(name);                                                \
		if (aq_cores_limited())                                        \
			aq_launch_begin(&launch, graph, 0);                    \
		if (aq_graph_begin(&memory, graph)) {                          \
			result = aq_real.name(graph, stream);                  \
			aq_graph_end(&memory, graph, result);                  \
		}                                                              \
		aq_launch_end(&launch, result == CUDA_SUCCESS);                \
		return result;                                                 \
	}

LAUNCH_GRAPH(cuGraphLaunch, false)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, true)

/* Of before CUDA 4. The size of their blocks was set by another call. */
CUresult cuLaunch(CUfunction f)
{
	LAUNCH(cuLaunch, false, NULL, f, 0, cuLaunch(f));
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	LAUNCH(cuLaunchGrid, false, NULL, f, aq_cost_size((unsigned)width,
							  (unsigned)height),
	       cuLaunchGrid(f, width, height));
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height,
			   CUstream stream)
{
	LAUNCH(cuLaunchGridAsync, false, stream, f,
	       aq_cost_size((unsigned)width, (unsigned)height),
	       cuLaunchGridAsync(f, width, height, stream));
}

static struct aq_gpu *gpu_of(CUstream stream)
{
	struct aq_gpu *gpu = NULL;
	CUcontext context;

	if (!aq_real.cuStreamGetCtx || !aq_real.cuCtxPushCurrent_v2 ||
	    aq_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
	    aq_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return NULL;
	if (aq_gpu_current(&gpu) != CUDA_SUCCESS)
		gpu = NULL;
	aq_real.cuCtxPopCurrent_v2(&context);
	return gpu;
}

/* Charged on each device. Its parts wait for each other, so a device's time says
 * nothing about its part, and none is measured. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *parts,
					      unsigned count, unsigned flags)
{
	AQ_ENTER(cuLaunchCooperativeKernelMultiDevice);
	for (unsigned i = 0; aq_cores_limited() && parts && i < count; i++) {
		const CUDA_LAUNCH_PARAMS *p = &parts[i];
		struct aq_gpu *gpu = gpu_of(p->hStream);

		if (gpu && !gpu->closed)
			aq_cores_charge(gpu, aq_cost_of(p->function, 0)->ns);
	}
	return aq_real.cuLaunchCooperativeKernelMultiDevice(parts, count,
							    flags);
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult result;

	AQ_ENTER(cuModuleUnload);
	result = aq_real.cuModuleUnload(module);
	aq_cost_forget();
	return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult result;

	AQ_ENTER(cuLibraryUnload);
	result = aq_real.cuLibraryUnload(library);
	aq_cost_forget();
	return result;
}
