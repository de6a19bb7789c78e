#include <string.h>

#include "fork.h"
#include "functions.h"
#include "sample.h"

#define SAMPLES 64u
#define READ_MAX 8u /* asked at a time: each question costs a microsecond */

enum state {
	FREE,	 /* with events, unless start is NULL */
	OPEN,	 /* between begin and end: one thread's */
	PENDING, /* the GPU has yet to pass it */
};

struct aq_sample {
	CUcontext context;
	CUevent start, end;
	struct aq_gpu *gpu;
	struct aq_cost *cost; /* NULL: nothing between them, for calibration */
	uint32_t charged;
	uint32_t state;
	uint64_t order;
};

static struct aq_lock samples_lock;
static struct aq_sample samples[SAMPLES];
static uint64_t order;

/* What two events with nothing between them are apart. */
static uint64_t pair_ns;
static bool pair_asked;

/* Our own calls must not spoil a capture that another thread of the host makes:
 * while they run, this thread is one that captures do not care about. */
static int relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (!aq_real.cuThreadExchangeStreamCaptureMode ||
	    aq_real.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
		return -1;
	return mode;
}

static void unrelax(int mode)
{
	if (mode >= 0)
		aq_real.cuThreadExchangeStreamCaptureMode(&mode);
}

static bool have_calls(void)
{
	return aq_real.cuEventCreate && aq_real.cuEventDestroy_v2 &&
	       aq_real.cuEventQuery && aq_real.cuEventRecord &&
	       (aq_real.cuEventElapsedTime_v2 || aq_real.cuEventElapsedTime) &&
	       aq_real.cuCtxGetCurrent;
}

bool aq_stream_captures(struct aq_stream s)
{
	CUresult (*query)(CUstream, int *) = s.per_thread
		? aq_real.cuStreamIsCapturing_ptsz
		: aq_real.cuStreamIsCapturing;
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!query)
		return false;
	return query(s.stream, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool record(CUevent event, struct aq_stream s)
{
	CUresult (*call)(CUevent, CUstream) =
		s.per_thread && aq_real.cuEventRecord_ptsz
		? aq_real.cuEventRecord_ptsz
		: aq_real.cuEventRecord;

	return call(event, s.stream) == CUDA_SUCCESS;
}

/* One with events of the context, else one without any. */
static struct aq_sample *pick_locked(CUcontext context)
{
	struct aq_sample *empty = NULL;

	for (unsigned i = 0; i < SAMPLES; i++) {
		struct aq_sample *s = &samples[i];

		if (s->state != FREE)
			continue;
		if (s->start && s->context == context)
			return s;
		if (!s->start && !empty)
			empty = s;
	}
	return empty;
}

static struct aq_sample *pick(CUcontext context)
{
	struct aq_sample *s;

	aq_lock(&samples_lock);
	s = pick_locked(context);
	if (s)
		s->state = OPEN;
	aq_unlock(&samples_lock);
	return s;
}

static void set_state(struct aq_sample *s, enum state state)
{
	aq_lock(&samples_lock);
	s->state = state;
	if (state == PENDING)
		s->order = ++order;
	aq_unlock(&samples_lock);
}

static bool make_events(struct aq_sample *s, CUcontext context)
{
	int mode = relax();
	bool made = false;

	if (aq_real.cuEventCreate(&s->start, CU_EVENT_DEFAULT) ==
	    CUDA_SUCCESS) {
		made = aq_real.cuEventCreate(&s->end, CU_EVENT_DEFAULT) ==
		       CUDA_SUCCESS;
		if (!made)
			aq_real.cuEventDestroy_v2(s->start);
	}
	unrelax(mode);
	s->context = context;
	if (!made)
		s->start = NULL;
	return made;
}

static struct aq_sample *open_sample(struct aq_gpu *gpu, struct aq_cost *cost,
				     uint32_t charged, struct aq_stream stream)
{
	CUcontext context = NULL;
	struct aq_sample *s;

	if (aq_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
		return NULL;
	s = pick(context);
	if (!s)
		return NULL;
	s->gpu = gpu;
	s->cost = cost;
	s->charged = charged;
	if ((s->start || make_events(s, context)) && record(s->start, stream))
		return s;
	set_state(s, FREE);
	return NULL;
}

struct aq_sample *aq_sample_begin(struct aq_gpu *gpu, struct aq_cost *cost,
				  uint32_t charged, struct aq_stream stream)
{
	if (!have_calls())
		return NULL;
	aq_samples_read();
	if (AQ_UNLIKELY(!__atomic_exchange_n(&pair_asked, true,
					     __ATOMIC_RELAXED)))
		aq_sample_end(open_sample(gpu, NULL, 0, stream), stream, true);
	return open_sample(gpu, cost, charged, stream);
}

void aq_sample_end(struct aq_sample *sample, struct aq_stream stream,
		   bool success)
{
	if (sample)
		set_state(sample, success && record(sample->end, stream)
					  ? PENDING
					  : FREE);
}

static CUresult elapsed(float *ms, const struct aq_sample *s)
{
	if (aq_real.cuEventElapsedTime_v2)
		return aq_real.cuEventElapsedTime_v2(ms, s->start, s->end);
	return aq_real.cuEventElapsedTime(ms, s->start, s->end);
}

static void learn_locked(struct aq_sample *s)
{
	float ms = 0;
	int64_t price;
	uint64_t ns;

	if (elapsed(&ms, s) != CUDA_SUCCESS || !(ms >= 0) || ms > 4000.0f * 3600)
		return;
	ns = (uint64_t)((double)ms * 1e6);
	if (!s->cost) {
		pair_ns = ns;
		return;
	}
	ns = ns > pair_ns ? ns - pair_ns : 0;
	aq_cost_learn(s->cost, ns);
	/* Where each launch is measured, by what it was; else one time, which
	 * may have been unusual, must not stand for 64: by the new estimate. */
	price = s->cost->each ? (int64_t)ns : s->cost->ns;
	aq_cores_correct(s->gpu, price - (int64_t)s->charged);
}

static struct aq_sample *oldest_locked(uint64_t after)
{
	struct aq_sample *oldest = NULL;

	for (unsigned i = 0; i < SAMPLES; i++) {
		struct aq_sample *s = &samples[i];

		if (s->state == PENDING && s->order > after &&
		    (!oldest || s->order < oldest->order))
			oldest = s;
	}
	return oldest;
}

/* Events that the driver knows no more are not ours to destroy. */
static void read_locked(void)
{
	uint64_t after = 0;
	struct aq_sample *s;

	for (unsigned n = 0; n < READ_MAX && (s = oldest_locked(after)); n++) {
		CUresult result = aq_real.cuEventQuery(s->end);

		after = s->order;
		if (result == CUDA_ERROR_NOT_READY)
			continue;
		if (result == CUDA_SUCCESS)
			learn_locked(s);
		else
			s->start = NULL;
		s->state = FREE;
	}
}

void aq_samples_read(void)
{
	int mode;

	if (!have_calls() || !aq_lock_try(&samples_lock))
		return; /* another thread is at it */
	if (oldest_locked(0)) {
		mode = relax();
		read_locked();
		unrelax(mode);
	}
	aq_unlock(&samples_lock);
}

bool aq_sample_pending(const struct aq_cost *cost)
{
	bool pending = false;

	aq_lock(&samples_lock);
	for (unsigned i = 0; i < SAMPLES && !pending; i++)
		pending = samples[i].state == PENDING &&
			  samples[i].cost == cost;
	aq_unlock(&samples_lock);
	return pending;
}

bool aq_sample_begun(const struct aq_cost *cost)
{
	bool begun = false;
	int mode = relax();

	aq_lock(&samples_lock);
	for (unsigned i = 0; i < SAMPLES && !begun; i++)
		begun = samples[i].state == PENDING &&
			samples[i].cost == cost &&
			aq_real.cuEventQuery(samples[i].start) == CUDA_SUCCESS;
	aq_unlock(&samples_lock);
	unrelax(mode);
	return begun;
}

static void drop_locked(struct aq_sample *s)
{
	s->start = NULL;
	s->context = NULL;
	if (s->state == PENDING)
		s->state = FREE;
}

void aq_samples_drop(CUcontext context)
{
	aq_lock(&samples_lock);
	for (unsigned i = 0; i < SAMPLES; i++)
		if (samples[i].context == context)
			drop_locked(&samples[i]);
	aq_unlock(&samples_lock);
}

void aq_samples_drop_gpu(const struct aq_gpu *gpu)
{
	aq_lock(&samples_lock);
	for (unsigned i = 0; i < SAMPLES; i++)
		if (samples[i].gpu == gpu)
			drop_locked(&samples[i]);
	aq_unlock(&samples_lock);
}

void aq_samples_forked(void)
{
	aq_lock_reset(&samples_lock);
	memset(samples, 0, sizeof(samples));
	pair_asked = false;
}
