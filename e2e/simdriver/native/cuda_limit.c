/*
 * A context's limits. The heap of device code and the buffer of printf are
 * device memory; what they are at first is part of what a context costs, and
 * growth beyond that is taken of the card at once (the real driver waits until
 * code that needs it is loaded).
 */
#include "cuda_state.h"

static const uint64_t defaults[CU_LIMITS] = {
	[CU_LIMIT_STACK_SIZE] = 1 << 10,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
};

/* Blocks that a limit takes beyond what any context has. */
static uint64_t extra(int limit, uint64_t value)
{
	uint64_t first = sim_round_up(defaults[limit], SIM_BLOCK);
	uint64_t now = sim_round_up(value, SIM_BLOCK);

	return limit != CU_LIMIT_STACK_SIZE && now > first ? now - first : 0;
}

void limits_begin_locked(CUcontext context)
{
	for (int i = 0; i < CU_LIMITS; i++)
		context->limits[i] = defaults[i];
}

void limits_end_locked(CUcontext context)
{
	for (int i = 0; i < CU_LIMITS; i++) {
		uint64_t bytes = extra(i, context->limits[i]);
		if (bytes != 0)
			blocks_give_locked(context->device, bytes);
	}
}

static CUresult set_locked(CUcontext context, int limit, uint64_t value)
{
	uint64_t before = extra(limit, context->limits[limit]);
	uint64_t after = extra(limit, value);

	if (after > before &&
	    !blocks_take_locked(context->device, after - before))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (after < before)
		blocks_give_locked(context->device, before - after);
	context->limits[limit] = value;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (limit < 0 || limit >= CU_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	if (value > cuda.devices[context->device].capacity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cuda_lock();
	result = set_locked(context, limit, value);
	cuda_unlock();
	return result;
}

CUresult cuCtxGetLimit(size_t *value, int limit)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (value == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (limit < 0 || limit >= CU_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}
