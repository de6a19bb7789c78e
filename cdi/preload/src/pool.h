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

/* A pointer of the pool with that number has been freed. */
void aq_pool_freed(uint32_t number);

#endif
