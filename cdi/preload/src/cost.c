#include <string.h>

#include "cost.h"
#include "table.h"

#define COSTS 4096u
#define PROBES 64u
#define UNKNOWN_NS 100000u /* until the first launch was measured */
#define LEAST_NS 500u	   /* what events can tell apart */

static struct aq_cost costs[COSTS];
static struct aq_cost other = {
	.ns = UNKNOWN_NS,
	.launches = 64,
	.sampled = 1,
	.given_up = 1,
};

static struct aq_cost *claim(struct aq_cost *cost, uint64_t key)
{
	uint64_t free = 0;

	if (__atomic_compare_exchange_n(&cost->key, &free, key, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		__atomic_store_n(&cost->ns, UNKNOWN_NS, __ATOMIC_RELAXED);
		return cost;
	}
	return free == key ? cost : NULL;
}

struct aq_cost *aq_cost_of(const void *work, unsigned size)
{
	uint64_t key = ((uint64_t)(uintptr_t)work << 6 | size) + 1;
	uint64_t start = aq_hash(key);

	for (unsigned i = 0; i < PROBES; i++) {
		struct aq_cost *cost = &costs[(start + i) % COSTS];
		uint64_t there = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);

		if (there == key || (there == 0 && claim(cost, key)))
			return cost;
	}
	return &other;
}

/*
 * The estimate is the mean of the last eight without the two longest. A launch
 * during which the driver ran another process looks longer than it was; so does a
 * kernel that waits for its peer on another GPU. By how much the rest is off, the
 * node's agent finds out.
 */
#define LEFT_OUT 4u /* one in so many */

static unsigned count(const struct aq_cost *cost)
{
	uint32_t sampled = __atomic_load_n(&cost->sampled, __ATOMIC_RELAXED);

	return sampled < AQ_COST_SAMPLES ? sampled : AQ_COST_SAMPLES;
}

static uint32_t estimate(const struct aq_cost *cost)
{
	unsigned n = count(cost);
	uint32_t sorted[AQ_COST_SAMPLES];
	uint64_t sum = 0;

	for (unsigned i = 0; i < n; i++) {
		unsigned j = i;

		for (; j > 0 && sorted[j - 1] > cost->samples[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = cost->samples[i];
	}
	n -= n / LEFT_OUT;
	for (unsigned i = 0; i < n; i++)
		sum += sorted[i];
	return (uint32_t)(sum / n);
}

/* The longest count here: where lengths differ much, some short ones in a row must
 * not hide them. */
static bool is_long(const struct aq_cost *cost)
{
	unsigned n = count(cost);
	uint64_t sum = 0;

	for (unsigned i = 0; i < n; i++)
		sum += cost->samples[i];
	return sum > (uint64_t)n * AQ_COST_LONG_NS;
}

void aq_cost_learn(struct aq_cost *cost, uint64_t ns)
{
	uint32_t n;

	if (cost == &other)
		return;
	if (ns < LEAST_NS)
		ns = LEAST_NS;
	if (ns > UINT32_MAX)
		ns = UINT32_MAX;
	n = __atomic_load_n(&cost->sampled, __ATOMIC_RELAXED);
	cost->samples[n % AQ_COST_SAMPLES] = (uint32_t)ns;
	n = n + 1 == 2 * AQ_COST_SAMPLES ? AQ_COST_SAMPLES : n + 1;
	__atomic_store_n(&cost->sampled, n, __ATOMIC_RELAXED);
	__atomic_store_n(&cost->ns, estimate(cost), __ATOMIC_RELAXED);
	__atomic_store_n(&cost->each, is_long(cost), __ATOMIC_RELAXED);
}

/* The estimate stays as a first guess: nothing is waited for, since programs that
 * load and unload modules all the time would wait all the time. */
static void forget(struct aq_cost *cost)
{
	__atomic_store_n(&cost->given_up, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&cost->launches, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&cost->sampled, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&cost->each, 0, __ATOMIC_RELAXED);
}

void aq_cost_forget(void)
{
	for (unsigned i = 0; i < COSTS; i++)
		if (__atomic_load_n(&costs[i].key, __ATOMIC_ACQUIRE))
			forget(&costs[i]);
}

void aq_cost_forget_graph(const void *graph)
{
	struct aq_cost *cost = aq_cost_of(graph, 0);

	if (cost != &other)
		forget(cost);
}
