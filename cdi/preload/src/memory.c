/*
 * cuMemAlloc and its kin: memory that one pointer stands for until it is freed.
 *
 * The hardware gives out blocks of 2 MiB. More than 1 MiB is charged in whole
 * blocks; less shares a block with other small allocations of the process, and
 * the block is charged once, while any of them lives. Before the call nobody
 * knows whether a new block will be needed, so a block is reserved, and one
 * that was not needed is given back: with less than a block of quota left, a
 * small allocation is refused even where a charged block has room for it.
 *
 * Order: the charge is there before the driver gives, and goes after the driver
 * took back; so what is charged is never less than what is held.
 */
#include "contexts.h"
#include "functions.h"
#include "memory.h"
#include "pointers.h"
#include "pool.h"

#define SMALL_MAX (UINT64_C(1) << 20)

static enum aq_kind kind_of(uint64_t bytes)
{
	return bytes <= SMALL_MAX ? AQ_SMALL : AQ_LARGE;
}

static uint32_t units_of(uint64_t bytes)
{
	return bytes <= SMALL_MAX ? AQ_BLOCK_UNITS : aq_units(bytes);
}

AQ_HOT bool aq_reserve_or_trim(struct aq_hold *hold, struct aq_gpu *gpu,
			       uint32_t units)
{
	aq_contexts_look(gpu);
	if (AQ_LIKELY(aq_reserve(hold, gpu, units)))
		return true;
	/* For what can never fit, pools keep what they have. */
	return units <= gpu->limit && aq_pools_trim(gpu) &&
	       aq_reserve(hold, gpu, units);
}

/* Records what the driver has given under the hold. */
static bool settle(struct aq_hold *hold, uint64_t pointer, uint64_t bytes)
{
	struct aq_allocation a = {
		.pointer = pointer,
		.gpu = hold->gpu,
		.kind = kind_of(bytes),
		.amount = units_of(bytes),
	};
	uint32_t keep = 0;

	if (AQ_UNLIKELY(a.amount > hold->units) &&
	    !aq_reserve_more(hold, a.amount - hold->units))
		return false;
	if (!aq_pointers_add(&a, &keep))
		return false;
	aq_commit(hold, keep);
	return true;
}

AQ_HOT CUresult aq_finish(struct aq_hold *hold, CUresult result,
			  uint64_t pointer, uint64_t bytes)
{
	if (AQ_LIKELY(result == CUDA_SUCCESS)) {
		if (AQ_LIKELY(settle(hold, pointer, bytes)))
			return result;
		if (aq_real.cuMemFree_v2)
			aq_real.cuMemFree_v2(pointer);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	aq_commit(hold, 0);
	return result;
}

AQ_HOT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	struct aq_hold hold;
	struct aq_gpu *gpu;
	CUresult result;

	AQ_ENTER_LIMITED(cuMemAlloc_v2, gpu, (pointer, bytes));
	if (!aq_reserve_or_trim(&hold, gpu, units_of(bytes)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = aq_real.cuMemAlloc_v2(pointer, bytes);
	return aq_finish(&hold, result, result ? 0 : *pointer, bytes);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes)
{
	struct aq_hold hold;
	struct aq_gpu *gpu;
	CUresult result;

	AQ_ENTER_LIMITED(cuMemAlloc, gpu, (pointer, bytes));
	if (!aq_reserve_or_trim(&hold, gpu, units_of(bytes)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = aq_real.cuMemAlloc(pointer, bytes);
	return aq_finish(&hold, result, result ? 0 : *pointer, bytes);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
	struct aq_hold hold;
	struct aq_gpu *gpu;
	CUresult result;

	AQ_ENTER_LIMITED(cuMemAllocManaged, gpu, (pointer, bytes, flags));
	if (!aq_reserve_or_trim(&hold, gpu, units_of(bytes)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = aq_real.cuMemAllocManaged(pointer, bytes, flags);
	return aq_finish(&hold, result, result ? 0 : *pointer, bytes);
}

/* The distance of rows is the driver's choice, known only after the call; this
 * is what it has been on every card. A wider one is charged by aq_finish. */
#define PITCH UINT64_C(512)

static uint64_t pitched(uint64_t width, uint64_t height)
{
	uint64_t bytes;

	if (width > UINT64_MAX - PITCH ||
	    __builtin_mul_overflow((width + PITCH - 1) / PITCH * PITCH, height,
				   &bytes))
		return UINT64_MAX;
	return bytes;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
			    size_t height, unsigned element)
{
	struct aq_hold hold;
	struct aq_gpu *gpu;
	CUresult result;

	AQ_ENTER_LIMITED(cuMemAllocPitch_v2, gpu,
			 (pointer, pitch, width, height, element));
	if (!aq_reserve_or_trim(&hold, gpu, units_of(pitched(width, height))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = aq_real.cuMemAllocPitch_v2(pointer, pitch, width, height,
					    element);
	return aq_finish(&hold, result, result ? 0 : *pointer,
			 result ? 0 : (uint64_t)*pitch * height);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch,
			 unsigned width, unsigned height, unsigned element)
{
	struct aq_hold hold;
	struct aq_gpu *gpu;
	CUresult result;

	AQ_ENTER_LIMITED(cuMemAllocPitch, gpu,
			 (pointer, pitch, width, height, element));
	if (!aq_reserve_or_trim(&hold, gpu, units_of(pitched(width, height))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = aq_real.cuMemAllocPitch(pointer, pitch, width, height,
					 element);
	return aq_finish(&hold, result, result ? 0 : *pointer,
			 result ? 0 : (uint64_t)*pitch * height);
}

/* A free always reaches the driver. It is tried with the pointer out of the
 * table, since once it is free the driver may give it to another thread. */
#define FREE(pointer, call)                           \
	do {                                          \
		struct aq_allocation a_;              \
		CUresult result_;                     \
						      \
		if (!aq_pointers_take(pointer, &a_))  \
			return call;                  \
		result_ = call;                       \
		if (result_ == CUDA_SUCCESS)          \
			aq_pointers_retire(&a_);      \
		else                                  \
			aq_pointers_put_back(&a_);    \
		return result_;                       \
	} while (0)

AQ_HOT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	AQ_ENTER(cuMemFree_v2);
	FREE(pointer, aq_real.cuMemFree_v2(pointer));
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	AQ_ENTER(cuMemFree);
	FREE(pointer, aq_real.cuMemFree(pointer));
}

/* In a capture it becomes a node of the graph, and nothing is freed now. Else the
 * driver frees when the stream gets there; we cannot tell when that is, and end
 * the charge when the request is taken. */
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	AQ_ENTER(cuMemFreeAsync);
	if (aq_is_capturing(stream, aq_real.cuStreamIsCapturing))
		return aq_real.cuMemFreeAsync(pointer, stream);
	FREE(pointer, aq_real.cuMemFreeAsync(pointer, stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	AQ_ENTER(cuMemFreeAsync_ptsz);
	if (aq_is_capturing(stream, aq_real.cuStreamIsCapturing_ptsz))
		return aq_real.cuMemFreeAsync_ptsz(pointer, stream);
	FREE(pointer, aq_real.cuMemFreeAsync_ptsz(pointer, stream));
}
