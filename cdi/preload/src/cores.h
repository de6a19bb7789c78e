/*
 * A share of a GPU's time, by the generic cell rate algorithm. All processes of
 * a share have one number between them, the theoretical arrival time: a launch
 * that costs c at a share of s moves it c/s on from now or from where it was,
 * and must wait while it is more than the burst ahead of the clock. There is no
 * token to hand on and nobody to hand it on: a process that is killed leaves a
 * debt that time pays.
 *
 * A process takes its time in advance, some microseconds at once, so that most
 * launches look at no clock.
 */
#ifndef AQ_CORES_H
#define AQ_CORES_H

#include "sample.h"
#include "share.h"

/* Whether any GPU of this container has a limit of cores; unknown until the
 * shares were read. */
enum { AQ_CORES_UNKNOWN, AQ_CORES_FREE, AQ_CORES_LIMITED };
extern uint8_t aq_cores_state;

/* Reads the shares, if that is still to be done. True: some are limited. */
bool aq_cores_look(void);

static inline bool aq_cores_limited(void)
{
	uint8_t state = __atomic_load_n(&aq_cores_state, __ATOMIC_ACQUIRE);

	return AQ_UNLIKELY(state != AQ_CORES_FREE) &&
	       (state == AQ_CORES_LIMITED || aq_cores_look());
}

/* A launch, from before it to after it. */
struct aq_launch {
	struct aq_sample *sample;
	struct aq_stream stream;
};

/* Charges a launch of that work to the current context's GPU, and waits until the
 * share allows it. */
void aq_launch_begin(struct aq_launch *launch, const void *work,
		     unsigned size);

/* The same for a launch that is not measured and costs so much. */
void aq_cores_charge(struct aq_gpu *gpu, uint32_t ns);

static inline void aq_launch_end(struct aq_launch *launch, bool success)
{
	if (AQ_UNLIKELY(launch->sample))
		aq_sample_end(launch->sample, launch->stream, success);
}

#endif
