/*
 * What a kernel or a graph costs: nanoseconds of GPU time, learnt from launches
 * that were measured. Of one function, launches of other sizes are another cost.
 */
#ifndef AQ_COST_H
#define AQ_COST_H

#include <stdbool.h>
#include <stdint.h>

#define AQ_COST_SAMPLES 8u
#define AQ_COST_LONG_NS 5000000u /* on average: each launch is measured */
#define AQ_COST_FIRST 1u /* launches that may be made at a guess */

struct aq_cost {
	uint64_t key;	   /* 0: free */
	uint32_t ns;	   /* the estimate */
	uint32_t launches; /* since it was made or forgotten */
	uint32_t samples[AQ_COST_SAMPLES];
	uint32_t sampled;  /* how many there were */
	uint32_t given_up; /* to wait for the first */
	uint32_t each;	   /* launch is measured and charged what it took */
	uint32_t spare;
};

/* The size of a launch, coarse: the logarithm of its threads. */
static inline unsigned aq_cost_size(uint64_t blocks, uint64_t threads)
{
	uint64_t n;

	if (__builtin_mul_overflow(blocks, threads, &n) || n == 0)
		return 0;
	return 63u - (unsigned)__builtin_clzll(n);
}

/* The cost of a function or a graph at that size. When the table is full it is
 * one that all others share and that nobody measures. */
struct aq_cost *aq_cost_of(const void *work, unsigned size);

/* Whether the first launches were not all measured but for the last. The first
 * one alone may have been a short one of many that are not. */
static inline bool aq_cost_unknown(const struct aq_cost *cost)
{
	uint32_t sampled = __atomic_load_n(&cost->sampled, __ATOMIC_RELAXED);

	return sampled < AQ_COST_SAMPLES &&
	       !__atomic_load_n(&cost->given_up, __ATOMIC_RELAXED) &&
	       __atomic_load_n(&cost->launches, __ATOMIC_RELAXED) >
		       sampled + AQ_COST_FIRST;
}

/* It is not waited for any longer; it took so long at least. */
static inline void aq_cost_give_up(struct aq_cost *cost, uint32_t least)
{
	__atomic_store_n(&cost->given_up, 1, __ATOMIC_RELAXED);
	if (least > __atomic_load_n(&cost->ns, __ATOMIC_RELAXED) &&
	    __atomic_load_n(&cost->sampled, __ATOMIC_RELAXED) == 0)
		__atomic_store_n(&cost->ns, least, __ATOMIC_RELAXED);
}

/* Counts a launch. True: it is one to measure, as the first ones are and all
 * until one was; then one in 64, or more of those that take long. */
static inline bool aq_cost_count(struct aq_cost *cost)
{
	uint32_t n = __atomic_load_n(&cost->launches, __ATOMIC_RELAXED);
	uint32_t ns = __atomic_load_n(&cost->ns, __ATOMIC_RELAXED);
	uint32_t others = __builtin_expect(ns > 1000000, 0) ? 7 : 63;

	/* A count lost to another thread does no harm. */
	__atomic_store_n(&cost->launches, n + 1, __ATOMIC_RELAXED);
	return __builtin_expect(
		(n & others) == 0 || n < AQ_COST_SAMPLES ||
			__atomic_load_n(&cost->each, __ATOMIC_RELAXED) ||
			__atomic_load_n(&cost->sampled, __ATOMIC_RELAXED) == 0,
		0);
}

/* A measured launch. One thread at a time. */
void aq_cost_learn(struct aq_cost *cost, uint64_t ns);

/* Handles are used again, for other work: what was learnt is a guess from then on,
 * of all functions or of one graph. */
void aq_cost_forget(void);
void aq_cost_forget_graph(const void *graph);

#endif
