/*
 * Allocating and freeing at random in one of several ways, each of which never
 * holds more than WORK_BYTES, what it needs for a moment included.
 */
#include <time.h>

#include "driver.h"

#define WORK_PIECE (UINT64_C(8) << 20)
#define WORK_PIECES 3 /* a pool needs one more while it allocates */
#define WORK_BYTES (WORK_PIECE * (WORK_PIECES + 1))

enum work_kind { WORK_LARGE, WORK_SMALL, WORK_VMM, WORK_POOL, WORK_KINDS };

/* In memory that the parent reads too. */
struct work {
	unsigned long rounds, refused, odd;
	uint64_t longest_ns; /* of all calls */
	uint32_t inside;     /* a call is being made */
	uint32_t begun;
};

static __thread CUdeviceptr work_held[WORK_PIECES];
static __thread unsigned work_count;

static uint64_t work_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Makes a call and notes how long it took and whether it failed. */
#define WORK_CALL(w, call)                                            \
	({                                                            \
		uint64_t begin_ = work_now(), took_;                  \
		CUresult result_;                                     \
								      \
		__atomic_store_n(&(w)->inside, 1, __ATOMIC_RELAXED);  \
		result_ = (call);                                     \
		__atomic_store_n(&(w)->inside, 0, __ATOMIC_RELAXED);  \
		took_ = work_now() - begin_;                          \
		if (took_ > (w)->longest_ns)                          \
			(w)->longest_ns = took_;                      \
		(w)->refused += result_ == CUDA_ERROR_OUT_OF_MEMORY;  \
		(w)->odd += result_ != CUDA_SUCCESS &&                \
			    result_ != CUDA_ERROR_OUT_OF_MEMORY;      \
		result_;                                              \
	})

/* Memory that only its mapping keeps alive. */
static bool work_map(struct work *w, CUdeviceptr *address)
{
	CUmemAllocationProp properties = { .type = 1, .location = { 1, 0 } };
	CUmemGenericAllocationHandle handle;

	if (WORK_CALL(w, cuda.cuMemCreate(&handle, WORK_PIECE, &properties, 0)))
		return false;
	if (cuda.cuMemAddressReserve(address, WORK_PIECE, 0, 0, 0) ||
	    WORK_CALL(w, cuda.cuMemMap(*address, WORK_PIECE, 0, handle, 0)))
		w->odd++;
	WORK_CALL(w, cuda.cuMemRelease(handle));
	return true;
}

static bool work_take(struct work *w, enum work_kind kind, CUdeviceptr *at)
{
	switch (kind) {
	case WORK_LARGE:
		return !WORK_CALL(w, cuda.cuMemAlloc_v2(at, WORK_PIECE));
	case WORK_SMALL:
		return !WORK_CALL(w, cuda.cuMemAlloc_v2(at, 4096));
	case WORK_VMM:
		return work_map(w, at);
	default:
		return !WORK_CALL(w, cuda.cuMemAllocAsync(at, WORK_PIECE, NULL));
	}
}

static void work_give(struct work *w, enum work_kind kind, CUdeviceptr at)
{
	switch (kind) {
	case WORK_LARGE:
	case WORK_SMALL:
		WORK_CALL(w, cuda.cuMemFree_v2(at));
		break;
	case WORK_VMM:
		WORK_CALL(w, cuda.cuMemUnmap(at, WORK_PIECE));
		cuda.cuMemAddressFree(at, WORK_PIECE);
		break;
	default:
		WORK_CALL(w, cuda.cuMemFreeAsync(at, NULL));
		cuda.cuStreamSynchronize(NULL);
	}
}

static void work_round(struct work *w, enum work_kind kind, unsigned *seed)
{
	if (work_count < WORK_PIECES && (!work_count || rand_r(seed) % 2))
		work_count += work_take(w, kind, &work_held[work_count]);
	else
		work_give(w, kind, work_held[--work_count]);
	__atomic_fetch_add(&w->rounds, 1, __ATOMIC_RELAXED);
}

static void work_finish(struct work *w, enum work_kind kind)
{
	while (work_count > 0)
		work_give(w, kind, work_held[--work_count]);
}
