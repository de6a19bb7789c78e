/* Contexts, each thread's stack of them, and what dies with one. */
#include "cuda_state.h"

#include <stdlib.h>
#include <string.h>

struct context_stack {
	unsigned depth, room;
	CUcontext at[];
};

static _Thread_local struct context_stack *stack
	__attribute__((tls_model("initial-exec")));

static pthread_key_t stack_key;

static void make_key(void)
{
	pthread_key_create(&stack_key, free);
}

static bool push(CUcontext context)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (stack == NULL || stack->depth == stack->room) {
		unsigned room = stack == NULL ? 8 : stack->room * 2;
		struct context_stack *grown = realloc(
			stack, sizeof(*grown) + room * sizeof(grown->at[0]));
		if (grown == NULL)
			return false;
		if (stack == NULL)
			grown->depth = 0;
		grown->room = room;
		stack = grown;
		pthread_once(&once, make_key);
		pthread_setspecific(stack_key, stack);
	}
	stack->at[stack->depth++] = context;
	return true;
}

static CUcontext top(void)
{
	return stack == NULL || stack->depth == 0 ? NULL :
						    stack->at[stack->depth - 1];
}

CUcontext context_current(CUresult *result)
{
	CUcontext context = top();

	if (!cuda.initialised)
		*result = CUDA_ERROR_NOT_INITIALIZED;
	else if (context == NULL)
		*result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!context->alive)
		*result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		return context;
	return NULL;
}

bool blocks_take_locked(CUdevice device, uint64_t bytes)
{
	const struct device *d = &cuda.devices[device];

	if (ledger_take(d->ledger_index, bytes, d->capacity))
		return true;
	return pools_release_locked(device) &&
	       ledger_take(d->ledger_index, bytes, d->capacity);
}

void blocks_give_locked(CUdevice device, uint64_t bytes)
{
	ledger_give(cuda.devices[device].ledger_index, bytes);
}

static uint64_t context_cost(CUdevice device)
{
	return sim_round_up(cuda.devices[device].gpu->context_bytes, SIM_BLOCK);
}

static bool take_small_block(void *context)
{
	return blocks_take_locked(((CUcontext)context)->device, SIM_BLOCK);
}

static void give_small_block(void *context)
{
	blocks_give_locked(((CUcontext)context)->device, SIM_BLOCK);
}

static const struct arena_source context_blocks = {
	.take = take_small_block,
	.give = give_small_block,
};

static CUresult take_context_locked(CUcontext context)
{
	uint64_t cost = context_cost(context->device);

	if (cost != 0 && !blocks_take_locked(context->device, cost))
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->arena = arena_new(&context_blocks, context, context->device,
				   context, NULL);
	if (context->arena != NULL)
		return CUDA_SUCCESS;
	blocks_give_locked(context->device, cost);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult context_activate_locked(CUcontext context)
{
	unsigned gpu = cuda.devices[context->device].ledger_index;

	switch (ledger_begin(gpu, device_there)) {
	case LEDGER_BEGUN:
		break;
	case LEDGER_NO_DEVICE: /* divided since cuInit, or otherwise */
		return CUDA_ERROR_INVALID_DEVICE;
	case LEDGER_FULL:
		return CUDA_ERROR_UNKNOWN;
	}
	CUresult result = take_context_locked(context);
	if (result != CUDA_SUCCESS) {
		ledger_end(gpu);
		return result;
	}
	limits_begin_locked(context);
	context->alive = true;
	context->incarnation++;
	return CUDA_SUCCESS;
}

/* A dead context stays as a few bytes, since handles to it may be about. */
void context_deactivate_locked(CUcontext context)
{
	context->alive = false;
	arena_destroy_locked(context->arena);
	context->arena = NULL;
	while (context->regions != NULL) {
		struct region *region = context->regions;
		if (region->kind != REGION_HOST &&
		    region->kind != REGION_FOREIGN)
			blocks_give_locked(region->device, region->span);
		region_remove_locked(region);
		region_free_locked(region);
	}
	arrays_end_locked(context);
	limits_end_locked(context);
	uint64_t cost = context_cost(context->device);
	if (cost != 0)
		blocks_give_locked(context->device, cost);
	ledger_end(cuda.devices[context->device].ledger_index);
}

CUresult context_create_locked(CUcontext *context, CUdevice device,
			       unsigned flags, bool primary)
{
	CUcontext made = calloc(1, sizeof(*made));

	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->device = device;
	made->flags = flags;
	made->primary = primary;
	CUresult result = context_activate_locked(made);
	if (result != CUDA_SUCCESS) {
		free(made);
		return result;
	}
	*context = made;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (context == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	result = context_create_locked(context, device, flags, false);
	cuda_unlock();
	if (result == CUDA_SUCCESS && !push(*context))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count,
			unsigned flags, CUdevice device)
{
	if (affinity == NULL && count != 0)
		return CUDA_ERROR_INVALID_VALUE;
	return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags,
			CUdevice device)
{
	(void)parameters; /* affinity and CIG: nothing that memory depends on */
	return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (context == NULL || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	work_drain(context);
	cuda_lock();
	if (context->alive)
		context_deactivate_locked(context);
	else
		result = CUDA_ERROR_INVALID_CONTEXT;
	cuda_unlock();
	if (result == CUDA_SUCCESS && top() == context)
		stack->depth--;
	return result;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (context == NULL) {
		if (top() != NULL)
			stack->depth--;
		return CUDA_SUCCESS;
	}
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (top() != NULL) {
		stack->at[stack->depth - 1] = context;
		return CUDA_SUCCESS;
	}
	return push(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (context == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*context = top();
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (context == NULL || !context->alive)
		return CUDA_ERROR_INVALID_CONTEXT;
	return push(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (top() == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context != NULL)
		*context = top();
	stack->depth--;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*device = context->device;
	return CUDA_SUCCESS;
}

/* NULL means the current context, here and in cuCtxSynchronize_v2. */
CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	CUresult result = cuda_ready();

	if (context == NULL)
		return cuCtxGetDevice(device);
	if (result != CUDA_SUCCESS)
		return result;
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*device = context->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
	CUresult result = cuda_ready();

	if (context == NULL) {
		context = context_current(&result);
		if (context == NULL)
			return result;
	}
	if (result != CUDA_SUCCESS)
		return result;
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	work_drain(context);
	cuda_lock();
	pools_synchronise_locked(context->device);
	cuda_unlock();
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	return cuCtxSynchronize_v2(NULL);
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
	CUresult result = cuda_ready();

	if (context == NULL && context_current(&result) == NULL)
		return result;
	if (result != CUDA_SUCCESS)
		return result;
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}
