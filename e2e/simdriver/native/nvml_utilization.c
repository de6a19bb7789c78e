/*
 * How busy a device is, in whole percent of the last second, noted six times a
 * second; and which processes keep it so. Memory counts as idle. Nothing of it
 * is told of a card in MIG mode.
 */
#include "compute.h"
#include "nvml_state.h"

#define MAX_SAMPLES COMPUTE_QUEUES

struct sample {
	unsigned pid, percent;
};

static unsigned percent(const struct compute *c,
			const uint64_t history[COMPUTE_HISTORY])
{
	return (compute_use(c, history) + 5) / 10;
}

/* NULL while nobody has ever computed. */
static struct compute *open_state(void)
{
	return ledger_open(nvml.root) ? compute_copy(nvml.root) : NULL;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
					   nvmlUtilization_t *rates)
{
	ENTER_DEVICE(device, rates);
	if (nvml_divided(device))
		return NVML_ERROR_NOT_SUPPORTED;
	*rates = (nvmlUtilization_t){ 0, 0 };
	struct compute *c = open_state();
	if (c != NULL) {
		rates->gpu = percent(c, c->gpus[device->ledger_index].history);
		compute_drop_copy(c);
	}
	return NVML_SUCCESS;
}

/* The living processes that used the device, if this was noted after a time in
 * microseconds since 1970. *noted gets when it was. */
static unsigned collect(nvmlDevice_t device, unsigned long long after,
			struct sample samples[MAX_SAMPLES],
			unsigned long long *noted)
{
	struct compute *c = open_state();
	unsigned count = 0;

	if (c == NULL)
		return 0;
	*noted = (c->epoch + c->marks * COMPUTE_PERIOD) / 1000;
	for (unsigned i = 0; i < c->high && *noted > after; i++) {
		const struct compute_queue *queue = &c->queues[i];
		struct sample sample = { .percent =
						 percent(c, queue->history) };
		if (queue->gpu == device->ledger_index && sample.percent > 0 &&
		    ledger_lives((unsigned)(queue->owner >> 32) - 1,
				 (uint32_t)queue->owner, &sample.pid))
			samples[count++] = sample;
	}
	compute_drop_copy(c);
	return count;
}

/* *room becomes how many there are, also when they have no room. */
static nvmlReturn_t answer(unsigned count, bool have_array, unsigned *room)
{
	bool fits = have_array && *room >= count;

	*room = count;
	if (count == 0)
		return NVML_ERROR_NOT_FOUND;
	return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t
nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
				nvmlProcessUtilizationSample_t *samples,
				unsigned *count, unsigned long long last_seen)
{
	struct sample found[MAX_SAMPLES];
	unsigned long long noted;

	ENTER_DEVICE(device, count);
	if (nvml_divided(device))
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned n = collect(device, last_seen, found, &noted);
	nvmlReturn_t result = answer(n, samples != NULL, count);
	for (unsigned i = 0; result == NVML_SUCCESS && i < n; i++)
		samples[i] = (nvmlProcessUtilizationSample_t){
			.pid = found[i].pid,
			.timeStamp = noted,
			.smUtil = found[i].percent,
		};
	return result;
}

nvmlReturn_t
nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
				      nvmlProcessesUtilizationInfo_t *all)
{
	struct sample found[MAX_SAMPLES];
	unsigned long long noted;

	ENTER_DEVICE(device, all);
	if (nvml_divided(device))
		return NVML_ERROR_NOT_SUPPORTED;
	if (all->version != NVML_VERSIONED(nvmlProcessesUtilizationInfo_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned n = collect(device, all->lastSeenTimeStamp, found, &noted);
	nvmlReturn_t result = answer(n, all->procUtilArray != NULL,
				     &all->processSamplesCount);
	for (unsigned i = 0; result == NVML_SUCCESS && i < n; i++)
		all->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
			.timeStamp = noted,
			.pid = found[i].pid,
			.smUtil = found[i].percent,
		};
	return result;
}
