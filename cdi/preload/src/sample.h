/*
 * Measuring launches: two events of the host's stream around one, read when the
 * GPU is past them. Nothing here ever waits for the GPU, and nothing is recorded
 * in a stream that is being captured.
 */
#ifndef AQ_SAMPLE_H
#define AQ_SAMPLE_H

#include "cost.h"
#include "share.h"

struct aq_sample;

/* A stream, and which of the two families of calls the host uses it with. */
struct aq_stream {
	CUstream stream;
	bool per_thread;
};

/* Whether what is done in the stream becomes part of a graph, or the driver will
 * not say. */
bool aq_stream_captures(struct aq_stream stream);

/* Before the launch, which was charged so many ns. NULL: it is not measured. */
struct aq_sample *aq_sample_begin(struct aq_gpu *gpu, struct aq_cost *cost,
				  uint32_t charged, struct aq_stream stream);

/* After it. */
void aq_sample_end(struct aq_sample *sample, struct aq_stream stream,
		   bool success);

/* Reads what the GPU is past, and learns from it. */
void aq_samples_read(void);

/* Whether a launch of that cost has yet to be read. */
bool aq_sample_pending(const struct aq_cost *cost);

/* Whether the GPU is at one of them. */
bool aq_sample_begun(const struct aq_cost *cost);

/* The events of a context, or of a device's contexts, are gone with it. */
void aq_samples_drop(CUcontext context);
void aq_samples_drop_gpu(const struct aq_gpu *gpu);

/* cores.c: a launch turned out to cost so much more than it was charged. */
void aq_cores_correct(struct aq_gpu *gpu, int64_t ns);

#endif
