/*
 * What a kernel or a graph costs: nanoseconds of GPU time, learnt from launches
 * that were measured. Of one function, launches of other sizes are another cost.
 */
#ifndef AQ_COST_H
#define AQ_COST_H

#include <stdbool.h>
#include <stdint.h>

#define AQ_COST_SAMPLES 8u

struct aq_cost {
	uint64_t key;	   /* 0: free */
	uint32_t ns;	   /* the estimate */
	uint32_t launches; /* since it was made or forgotten */
	uint32_t samples[AQ_COST_SAMPLES];
	uint32_t sampled; /* how many there were */
	uint32_t spare[3];
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

/* Whether several launches were made and none was measured. */
static inline bool aq_cost_unknown(const struct aq_cost *cost)
{
	return __atomic_load_n(&cost->sampled, __ATOMIC_RELAXED) == 0 &&
	       __atomic_load_n(&cost->launches, __ATOMIC_RELAXED) >
		       AQ_COST_SAMPLES;
}

/* Counts a launch. True: it is one to measure, as the first ones are, all until
 * one was, then one in 64, and each one that takes long. */
static inline bool aq_cost_count(struct aq_cost *cost)
{
	uint32_t n = __atomic_load_n(&cost->launches, __ATOMIC_RELAXED);

	/* A count lost to another thread does no harm. */
	__atomic_store_n(&cost->launches, n + 1, __ATOMIC_RELAXED);
	return __builtin_expect(
		(n & 63) < (n < 64 ? AQ_COST_SAMPLES : 1) ||
			__atomic_load_n(&cost->sampled, __ATOMIC_RELAXED) == 0 ||
			__atomic_load_n(&cost->ns, __ATOMIC_RELAXED) > 5000000u,
		0);
}

/* A measured launch. One thread at a time. */
void aq_cost_learn(struct aq_cost *cost, uint64_t ns);

/* Handles are used again, for other work: what was learnt is forgotten, of all
 * functions or of one graph. */
void aq_cost_forget(void);
void aq_cost_forget_graph(const void *graph);

#endif
