/*
 * The oracle of tests: how long a card has worked for a process, exactly, which
 * no real NVML tells. Nothing but a test program knows of it.
 */
#include "compute.h"
#include "nvml_state.h"

/* ns; 0 for a process that has no work and never had any, or is dead. */
SIM_EXPORT uint64_t sim_busy_ns(unsigned gpu, unsigned pid);

uint64_t sim_busy_ns(unsigned gpu, unsigned pid)
{
	struct compute *copy = NULL;
	uint64_t busy = 0;
	uint32_t owner;

	if (ledger_open(nvml.root))
		copy = compute_copy(nvml.root);
	for (unsigned i = 0; copy != NULL && i < copy->high; i++) {
		const struct compute_queue *queue = &copy->queues[i];

		if (queue->owner != 0 &&
		    compute_card(copy, queue) == gpu &&
		    ledger_lives((unsigned)(queue->owner >> 32) - 1,
				 (uint32_t)queue->owner, &owner) &&
		    owner == pid)
			busy += queue->busy;
	}
	if (copy != NULL)
		compute_drop_copy(copy);
	return busy;
}
