#include "agent.h"
#include "cores.h"
#include "fork.h"
#include "functions.h"
#include "region.h"

#define ALL 1000u			/* permille of a GPU */
#define LEAST 10u			/* what a share without any is left */
#define BURST AQ_NS_PER_S		/* ns that a launch may be early */
#define ADVANCE INT64_C(200000)		/* ns of GPU time taken at once */
#define NAP UINT64_C(100000000)		/* then the share is looked at again */
#define DEBT_MAX (600 * AQ_NS_PER_S)	/* more is no debt but garbage */
#define K_MIN 333u
#define K_MAX 3000u

/* What this process has in advance on a GPU. */
struct cores {
	int64_t credit;	   /* ns of GPU time */
	uint64_t launches; /* not yet reported */
} __attribute__((aligned(64)));

static struct cores all_cores[AQ_SHARES_MAX + 1]; /* as aq_gpus */
uint8_t aq_cores_state;

static struct cores *cores_of(const struct aq_gpu *gpu)
{
	return &all_cores[gpu->index];
}

/* What is in force: how much of the GPU, and what a measured nanosecond is. */
struct rate {
	uint32_t permille, k_permille;
};

/* The page may have been written since now was read. */
static bool is_younger(const struct aq_agent_view *view, uint64_t now,
		       uint64_t age)
{
	uint64_t t = view->t_mono;

	return t && (t > now ? t - now : now - t) < age;
}

static uint32_t share_permille(const struct aq_share *share,
			       const struct aq_agent_view *view, uint64_t now)
{
	uint32_t own = share->quota.core_percent * 10;
	uint32_t told = view->core_permille;

	if (own == 0)
		return told < LEAST ? LEAST : told;
	if (told > own && share->quota.core_burst &&
	    is_younger(view, now, AQ_AGENT_LENT_NS))
		return told;
	return own;
}

static struct rate rate_of(const struct aq_gpu *gpu, uint64_t now)
{
	struct rate rate = { 0, 1000 };

	for (unsigned i = 0; i < gpu->share_count; i++) {
		struct aq_share *share = aq_gpu_share(gpu, i);
		struct aq_agent_view view;

		aq_agent_read(share, &view);
		rate.permille += share_permille(share, &view, now);
		if (i > 0 || !view.k_permille ||
		    !is_younger(&view, now, AQ_AGENT_FRESH_NS))
			continue;
		rate.k_permille = view.k_permille < K_MIN   ? K_MIN
				  : view.k_permille > K_MAX ? K_MAX
							    : view.k_permille;
	}
	if (rate.permille > ALL)
		rate.permille = ALL;
	return rate;
}

/* The shares of one GPU add up, and the first one keeps the books. */
static struct aq_usage_header *books(const struct aq_gpu *gpu)
{
	return &aq_gpu_share(gpu, 0)->region->header;
}

static void add(uint64_t *counter, uint64_t n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

static void report(struct aq_gpu *gpu, uint64_t charged, uint64_t waited,
		   uint64_t now)
{
	struct aq_usage_header *header = books(gpu);
	struct aq_usage_slot *slot = aq_region_own_slot(aq_gpu_share(gpu, 0));
	uint64_t launches = __atomic_exchange_n(&cores_of(gpu)->launches, 0,
						__ATOMIC_RELAXED);

	add(&header->launches, launches);
	add(&header->charged_ns, charged);
	add(&header->throttle_ns, waited);
	if (!slot)
		return;
	add(&slot->launches, launches);
	add(&slot->throttled_ns, waited);
	__atomic_store_n(&slot->t_last, now, __ATOMIC_RELAXED);
}

/* Moves the arrival time on, and so takes a place in the order of those who
 * wait. Returns the time from which on it is our turn. */
static uint64_t reserve(uint64_t *tat, uint64_t cost, uint64_t now)
{
	uint64_t old = __atomic_load_n(tat, __ATOMIC_RELAXED), base;

	do
		base = old > now && old - now <= DEBT_MAX ? old : now;
	while (!__atomic_compare_exchange_n(tat, &old, base + cost, false,
					    __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED));
	return base - now > BURST ? base - BURST : now;
}

/* Who has all of the GPU saves nothing up for when that ends. */
static void spend(uint64_t *tat, uint64_t until)
{
	uint64_t old = __atomic_load_n(tat, __ATOMIC_RELAXED);

	while ((old < until || old - until > DEBT_MAX) &&
	       !__atomic_compare_exchange_n(tat, &old, until, false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* How far off a time is, when what it was reckoned by has turned out to be k
 * instead of old. */
static uint64_t rescale(uint64_t time, uint64_t now, uint64_t old, uint64_t k)
{
	if (time <= now || time - now > DEBT_MAX || !old)
		return time;
	return now + (time - now) * k / old;
}

/* A debt that was reckoned by another correction than the one in force is set
 * right, by the first to see it. Who is killed in between leaves it as it was. */
static void rebase(struct aq_usage_header *header, uint64_t k, uint64_t now)
{
	uint64_t old = __atomic_load_n(&header->tat_k, __ATOMIC_RELAXED), tat;

	if (old == k || !__atomic_compare_exchange_n(&header->tat_k, &old, k,
						     false, __ATOMIC_RELAXED,
						     __ATOMIC_RELAXED))
		return;
	if (old < K_MIN || old > K_MAX)
		return; /* new, or garbage */
	tat = __atomic_load_n(&header->tat, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&header->tat, &tat,
					    rescale(tat, now, old, k), false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* Waits until a time that was reckoned by a rate, and is reckoned anew when that
 * changes; so no nap is long. A GPU that is lent to us altogether needs none. */
static uint64_t wait_until(struct aq_gpu *gpu, uint64_t until, struct rate by,
			   uint64_t now)
{
	while (now < until) {
		struct rate rate = rate_of(gpu, now);

		if (rate.permille >= ALL)
			break;
		rebase(books(gpu), rate.k_permille, now);
		until = rescale(until, now, by.k_permille, rate.k_permille);
		by = rate;
		aq_sys_sleep_until(until - now < NAP ? until : now + NAP);
		now = aq_now();
	}
	return now;
}

/* Takes so much GPU time out of the share's budget, in the end. */
static void take(struct aq_gpu *gpu, uint64_t ns)
{
	uint64_t started = aq_now(), now = started, until;
	struct rate rate = rate_of(gpu, now);

	if (rate.permille >= ALL) {
		spend(&books(gpu)->tat, now + BURST);
	} else {
		rebase(books(gpu), rate.k_permille, now);
		until = reserve(&books(gpu)->tat,
				ns * rate.k_permille / rate.permille, now);
		now = wait_until(gpu, until, rate, now);
	}
	report(gpu, ns, now - started, now);
}

/* Credit is short: takes what is missing, and some in advance. */
static void refill(struct aq_gpu *gpu)
{
	AQ_KEEP_ERRNO;
	int64_t *credit = &cores_of(gpu)->credit;
	int64_t have, want;

	aq_samples_read();
	have = __atomic_load_n(credit, __ATOMIC_RELAXED);
	if (have >= 0)
		return; /* another thread took it, or it was overcharged */
	want = -have > ADVANCE ? -have : ADVANCE;
	/* Given before it is taken, so that no other thread takes it too. */
	__atomic_fetch_add(credit, want, __ATOMIC_RELAXED);
	take(gpu, (uint64_t)want);
}

void aq_cores_correct(struct aq_gpu *gpu, int64_t ns)
{
	__atomic_fetch_sub(&cores_of(gpu)->credit, ns, __ATOMIC_RELAXED);
}

#define LEARN_NAP UINT64_C(200000)
#define LEARN_MOST AQ_NS_PER_S

/* Hundreds of launches could be on their way before the first is through, at a
 * price that is nothing but a guess. So the first few go one by one, until one
 * is waited for in vain, since it may itself wait for something that is launched
 * later. If that is the very first, the guess is how long it has been seen to
 * run. */
static void wait_to_learn(struct aq_cost *cost)
{
	uint64_t now = aq_now(), until = now + LEARN_MOST, begun = 0;

	while (aq_cost_unknown(cost) && aq_sample_pending(cost)) {
		if (!begun && aq_sample_begun(cost))
			begun = now;
		if (now >= until) {
			aq_cost_give_up(cost, begun ? (uint32_t)(now - begun)
						    : 0);
			return;
		}
		aq_sys_sleep_until(now + LEARN_NAP);
		now = aq_now();
		aq_samples_read();
	}
}

/* Charges a launch that waited to learn what it costs. */
static uint32_t recharge(struct cores *cores, const struct aq_cost *cost,
			 uint32_t charged)
{
	uint32_t ns = __atomic_load_n(&cost->ns, __ATOMIC_RELAXED);

	__atomic_fetch_sub(&cores->credit, (int64_t)ns - (int64_t)charged,
			   __ATOMIC_RELAXED);
	return ns;
}

/* A launch that is captured costs nothing now; the graph's launch will. */
static void begin_slowly(struct aq_launch *launch, struct aq_gpu *gpu,
			 struct aq_cost *cost, uint32_t ns, bool measure)
{
	AQ_KEEP_ERRNO;
	struct cores *cores = cores_of(gpu);

	if (aq_stream_captures(launch->stream)) {
		__atomic_fetch_add(&cores->credit, ns, __ATOMIC_RELAXED);
		return;
	}
	if (aq_cost_unknown(cost)) {
		wait_to_learn(cost);
		ns = recharge(cores, cost, ns);
	}
	if (__atomic_load_n(&cores->credit, __ATOMIC_RELAXED) < 0)
		refill(gpu);
	if (measure)
		launch->sample = aq_sample_begin(gpu, cost, ns, launch->stream);
}

void aq_launch_begin(struct aq_launch *launch, const void *work, unsigned size)
{
	struct aq_gpu *gpu;
	struct aq_cost *cost;
	struct cores *cores;
	int64_t left;
	bool measure;
	uint32_t ns;

	if (aq_gpu_current(&gpu) != CUDA_SUCCESS || !gpu || gpu->closed)
		return;
	cores = cores_of(gpu);
	cost = aq_cost_of(work, size);
	measure = aq_cost_count(cost);
	ns = __atomic_load_n(&cost->ns, __ATOMIC_RELAXED);
	__atomic_fetch_add(&cores->launches, 1, __ATOMIC_RELAXED);
	left = __atomic_sub_fetch(&cores->credit, ns, __ATOMIC_RELAXED);
	if (AQ_UNLIKELY(measure || left < 0))
		begin_slowly(launch, gpu, cost, ns, measure);
}

void aq_cores_charge(struct aq_gpu *gpu, uint32_t ns)
{
	struct cores *cores = cores_of(gpu);

	__atomic_fetch_add(&cores->launches, 1, __ATOMIC_RELAXED);
	if (__atomic_sub_fetch(&cores->credit, ns, __ATOMIC_RELAXED) < 0)
		refill(gpu);
}

/* Fixed at its quota and at all of the GPU: nothing to hold back. */
static bool is_limited(const struct aq_gpu *gpu)
{
	uint32_t percent = 0;

	for (unsigned i = 0; i < gpu->share_count; i++)
		percent += aq_gpu_share(gpu, i)->quota.core_percent;
	return !gpu->closed && gpu->share_count > 0 && percent < 100;
}

bool aq_cores_look(void)
{
	bool limited = false;

	aq_shares_load();
	for (unsigned i = 0; i <= AQ_SHARES_MAX; i++)
		limited |= is_limited(&aq_gpus[i]);
	__atomic_store_n(&aq_cores_state,
			 limited ? AQ_CORES_LIMITED : AQ_CORES_FREE,
			 __ATOMIC_RELEASE);
	return limited;
}

void aq_cores_forked(void)
{
	for (unsigned i = 0; i <= AQ_SHARES_MAX; i++)
		all_cores[i] = (struct cores){ 0 };
	aq_cost_forget();
}
