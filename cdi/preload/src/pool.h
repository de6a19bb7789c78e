/*
 * Memory pools. What a pool holds is what it has reserved, not the sum of what
 * is allocated from it; so the pool is charged, and its pointers only tell when
 * to look at it again.
 */
#ifndef AQ_POOL_H
#define AQ_POOL_H

#include "charge.h"

/* Whether what is done in the stream becomes part of a graph. */
bool aq_is_capturing(CUstream stream, CUresult (*query)(CUstream, int *));

/* Charges the pools of the GPU what they have reserved now, after a driver call
 * that may have changed it or before the figures are shown. */
void aq_pools_refresh(const struct aq_gpu *gpu);

/* Has the pools of the GPU give back what they hold unused. True: the charge
 * fell. */
bool aq_pools_trim(const struct aq_gpu *gpu);

struct aq_pool;

/* A call on a pool begins, or one on a device's pool of graphs: the pool stays
 * known until aq_pool_end. gpu: whose a pool is that we have not seen before.
 * NULL: too many pools. */
struct aq_pool *aq_pool_begin(CUmemoryPool handle, struct aq_gpu *gpu);
struct aq_pool *aq_pool_begin_graphs(CUdevice device, struct aq_gpu *gpu);
void aq_pool_end(struct aq_pool *pool);

/* NULL: the pool is of the host's memory, or of a GPU without limit. */
struct aq_gpu *aq_pool_gpu(const struct aq_pool *pool);

/* Before the driver's call, what the pool may grow by. */
bool aq_pool_reserve(struct aq_pool *pool, struct aq_hold *hold,
		     uint32_t units);

/* After it. False: the pool grew by more than could be had, and the allocation
 * must be given back. */
bool aq_pool_settle(struct aq_pool *pool, struct aq_hold *hold, bool success);

/* Notes a pointer of the pool; instead of aq_pool_end, which then comes with the
 * pointer's free. False: out of memory of our own. */
bool aq_pool_record(const struct aq_pool *pool, CUdeviceptr pointer);

/* A pointer of the pool with that number has been freed. */
void aq_pool_freed(uint32_t number);

#endif
