/*
 * What memory pools are charged.
 *
 * Of a pool, P is what it is charged, R what calls in flight have reserved for
 * it, and M what it has reserved by its own account; P + R >= M always. After a
 * call its share of R is exchanged for what P lacks. With several calls in
 * flight M may hold what another of them took: then R still covers it, and the
 * other sets P right.
 *
 * M falls when a stream is synchronised, which we do not see. So it is read
 * again at every call on the pool, before figures are shown, and when memory is
 * short; until the process makes such a call, it stays charged.
 */
#include <string.h>

#include "fork.h"
#include "functions.h"
#include "memory.h"
#include "pointers.h"
#include "pool.h"

#define POOLS_MAX 1024u

struct aq_pool {
	CUmemoryPool handle; /* NULL: destroyed, alive by its pointers */
	struct aq_gpu *gpu;  /* NULL: not on a limited GPU */
	uint32_t charged;    /* units: P */
	uint32_t in_flight;  /* units: R */
	uint32_t live;	     /* pointers, and calls in flight */
	bool used;
	bool graphs;	 /* what graphs of the device allocate from */
	CUdevice device; /* of that one */
};

static struct aq_lock pools_lock;
static struct aq_pool pools[POOLS_MAX];
static uint32_t pool_count; /* pools[0, pool_count) were ever used */

static struct aq_pool *pool_find(CUmemoryPool handle)
{
	for (uint32_t i = 0; i < pool_count; i++)
		if (handle && pools[i].used && pools[i].handle == handle)
			return &pools[i];
	return NULL;
}

static struct aq_pool *pool_add(CUmemoryPool handle, struct aq_gpu *gpu)
{
	uint32_t i = 0;

	while (i < pool_count && pools[i].used)
		i++;
	if (i == POOLS_MAX)
		return NULL;
	if (i == pool_count)
		__atomic_store_n(&pool_count, i + 1, __ATOMIC_RELEASE);
	pools[i] = (struct aq_pool){ .handle = handle, .gpu = gpu, .used = true };
	return &pools[i];
}

static CUresult get_reserved(const struct aq_pool *pool, uint64_t *bytes)
{
	if (pool->graphs)
		return aq_real.cuDeviceGetGraphMemAttribute(
			pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
			bytes);
	if (!pool->handle || !aq_real.cuMemPoolGetAttribute)
		return CUDA_ERROR_NOT_FOUND;
	return aq_real.cuMemPoolGetAttribute(
		pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
}

static uint32_t reserved_units(const struct aq_pool *pool, uint32_t unknown)
{
	uint64_t bytes;

	return get_reserved(pool, &bytes) == CUDA_SUCCESS ? aq_units(bytes)
							  : unknown;
}

static void note(const struct aq_pool *changed)
{
	uint64_t units = 0;

	for (uint32_t i = 0; i < pool_count; i++)
		if (pools[i].used && pools[i].gpu == changed->gpu)
			units += pools[i].charged;
	aq_note_pools(changed->gpu, units << AQ_UNIT_SHIFT);
}

/* Lowers the charge to what is reserved. More than the charge is in flight. */
static bool pool_refresh(struct aq_pool *pool)
{
	uint32_t now = reserved_units(pool, pool->charged);
	uint32_t surplus = now < pool->charged ? pool->charged - now : 0;

	if (!surplus)
		return false;
	pool->charged = now;
	aq_release(pool->gpu, surplus);
	note(pool);
	return true;
}

static void pool_drop_if_dead(struct aq_pool *pool)
{
	if (pool->handle || pool->live > 0)
		return;
	if (pool->charged)
		aq_release(pool->gpu, pool->charged);
	pool->charged = 0;
	if (pool->gpu)
		note(pool);
	pool->used = false;
}

void aq_pool_freed(uint32_t number)
{
	struct aq_pool *pool = &pools[number];

	aq_lock(&pools_lock);
	pool->live--;
	if (pool->gpu && pool->handle)
		pool_refresh(pool);
	pool_drop_if_dead(pool);
	aq_unlock(&pools_lock);
}

static bool any_pool(void)
{
	return AQ_UNLIKELY(__atomic_load_n(&pool_count, __ATOMIC_ACQUIRE));
}

void aq_pools_refresh(const struct aq_gpu *gpu)
{
	if (!any_pool())
		return;
	aq_lock(&pools_lock);
	for (uint32_t i = 0; i < pool_count; i++)
		if (pools[i].used && pools[i].gpu == gpu && pools[i].charged)
			pool_refresh(&pools[i]);
	aq_unlock(&pools_lock);
}

static bool trim(const struct aq_pool *pool)
{
	if (pool->graphs)
		return aq_real.cuDeviceGraphMemTrim &&
		       aq_real.cuDeviceGraphMemTrim(pool->device) ==
			       CUDA_SUCCESS;
	return pool->handle && aq_real.cuMemPoolTrimTo &&
	       aq_real.cuMemPoolTrimTo(pool->handle, 0) == CUDA_SUCCESS;
}

bool aq_pools_trim(const struct aq_gpu *gpu)
{
	bool fell = false;

	if (!any_pool())
		return false;
	aq_lock(&pools_lock);
	for (uint32_t i = 0; i < pool_count; i++) {
		struct aq_pool *pool = &pools[i];

		if (!pool->used || pool->gpu != gpu || !pool->charged ||
		    !trim(pool))
			continue;
		fell |= pool_refresh(pool);
	}
	aq_unlock(&pools_lock);
	return fell;
}

struct aq_gpu *aq_pool_gpu(const struct aq_pool *pool)
{
	return pool->gpu;
}

/* A call on the pool begins: it stays until the call ends. A pool that was not
 * seen to be created is one of the device's own, or came past us: charged. */
struct aq_pool *aq_pool_begin(CUmemoryPool handle, struct aq_gpu *gpu)
{
	struct aq_pool *pool;

	aq_lock(&pools_lock);
	pool = pool_find(handle);
	if (!pool)
		pool = pool_add(handle, gpu);
	if (pool)
		pool->live++;
	aq_unlock(&pools_lock);
	return pool;
}

/* The device's pool of graphs, which once seen stays: of its two lives one is
 * the call's. */
struct aq_pool *aq_pool_begin_graphs(CUdevice device, struct aq_gpu *gpu)
{
	struct aq_pool *pool = NULL;

	aq_lock(&pools_lock);
	for (uint32_t i = 0; i < pool_count && !pool; i++)
		if (pools[i].used && pools[i].graphs &&
		    pools[i].device == device)
			pool = &pools[i];
	if (!pool && (pool = pool_add(NULL, gpu))) {
		pool->graphs = true;
		pool->device = device;
		pool->live++;
	}
	if (pool)
		pool->live++;
	aq_unlock(&pools_lock);
	return pool;
}

bool aq_pool_reserve(struct aq_pool *pool, struct aq_hold *hold,
		     uint32_t units)
{
	if (!aq_reserve_or_trim(hold, pool->gpu, units))
		return false;
	aq_lock(&pools_lock);
	pool->in_flight += units;
	aq_unlock(&pools_lock);
	return true;
}

/* Exchanges the hold for what the pool lacks. False: it has taken more than can
 * be had. It is charged as much as could be; a pool of graphs all of it, since
 * what they took is not given back. */
static bool settle_locked(struct aq_pool *pool, struct aq_hold *hold,
			  bool success)
{
	uint32_t units = hold->units, forced = 0;
	uint32_t have = pool->charged + units;
	uint32_t now = reserved_units(pool, success ? have : pool->charged);
	bool covered = true;

	pool->in_flight -= units;
	if (now > have + pool->in_flight) {
		uint32_t more = now - have - pool->in_flight;

		covered = aq_reserve_more(hold, more);
		forced = !covered && pool->graphs ? more : 0;
	}
	have = pool->charged + hold->units + forced;
	if (now > have)
		now = have; /* in flight, or not covered */
	if (forced)
		aq_charge(pool->gpu, forced);
	if (now >= pool->charged) {
		aq_commit(hold, now - pool->charged - forced);
	} else {
		aq_commit(hold, 0);
		aq_release(pool->gpu, pool->charged - now);
	}
	pool->charged = now;
	note(pool);
	return covered;
}

bool aq_pool_settle(struct aq_pool *pool, struct aq_hold *hold, bool success)
{
	bool covered;

	aq_lock(&pools_lock);
	covered = settle_locked(pool, hold, success);
	aq_unlock(&pools_lock);
	return covered;
}

void aq_pool_end(struct aq_pool *pool)
{
	aq_lock(&pools_lock);
	pool->live--;
	pool_drop_if_dead(pool);
	aq_unlock(&pools_lock);
}

/* Keeps the call's claim on the pool for the pointer, until that is freed. */
bool aq_pool_record(const struct aq_pool *pool, CUdeviceptr pointer)
{
	struct aq_allocation a = {
		.pointer = pointer,
		.gpu = pool->gpu,
		.kind = AQ_POOLED,
		.amount = (uint32_t)(pool - pools),
	};
	uint32_t keep;

	return aq_pointers_add(&a, &keep);
}

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	struct aq_gpu *gpu = NULL;
	CUresult result;

	AQ_ENTER(cuMemPoolCreate);
	if (props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		result = aq_gpu_of_device(props->location.id, &gpu);
		if (result != CUDA_SUCCESS)
			return result;
	}
	result = aq_real.cuMemPoolCreate(handle, props);
	if (result != CUDA_SUCCESS)
		return result;
	aq_lock(&pools_lock);
	if (!pool_add(*handle, gpu))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	aq_unlock(&pools_lock);
	if (result != CUDA_SUCCESS)
		aq_real.cuMemPoolDestroy(*handle);
	return result;
}

/* What an imported pool says that it has reserved is another process's. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *from,
					    int type, unsigned long long flags)
{
	CUresult result;

	AQ_ENTER(cuMemPoolImportFromShareableHandle);
	result = aq_real.cuMemPoolImportFromShareableHandle(handle, from, type,
							    flags);
	if (result != CUDA_SUCCESS)
		return result;
	aq_lock(&pools_lock);
	if (!pool_find(*handle))
		pool_add(*handle, NULL); /* else, it gives nothing anyway */
	aq_unlock(&pools_lock);
	return result;
}

/* What is allocated from it lives on, and so does its charge, until the last of
 * it is freed. The handle is forgotten before the call, since afterwards the
 * driver may give it to another pool. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct aq_pool *pool;
	CUresult result;

	AQ_ENTER(cuMemPoolDestroy);
	aq_lock(&pools_lock);
	pool = handle ? pool_find(handle) : NULL;
	if (pool) {
		if (pool->gpu) {
			aq_real.cuMemPoolTrimTo(handle, 0);
			pool_refresh(pool);
		}
		pool->handle = NULL;
		pool->live++;
	}
	aq_unlock(&pools_lock);
	result = aq_real.cuMemPoolDestroy(handle);
	if (!pool)
		return result;
	aq_lock(&pools_lock);
	if (result != CUDA_SUCCESS)
		pool->handle = handle;
	pool->live--;
	pool_drop_if_dead(pool);
	aq_unlock(&pools_lock);
	return result;
}

static void refresh_handle(CUmemoryPool handle)
{
	struct aq_pool *pool;

	aq_lock(&pools_lock);
	pool = pool_find(handle);
	if (pool && pool->gpu)
		pool_refresh(pool);
	aq_unlock(&pools_lock);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	CUresult result;

	AQ_ENTER(cuMemPoolTrimTo);
	result = aq_real.cuMemPoolTrimTo(handle, keep);
	refresh_handle(handle);
	return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	CUresult result;

	AQ_ENTER(cuMemPoolSetAttribute);
	result = aq_real.cuMemPoolSetAttribute(handle, attribute, value);
	refresh_handle(handle);
	return result;
}

void aq_pools_forked(void)
{
	aq_lock_reset(&pools_lock);
	memset(pools, 0, pool_count * sizeof(pools[0]));
	pool_count = 0;
}
