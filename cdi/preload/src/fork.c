#include <pthread.h>
#include <stdbool.h>

#include "fork.h"

/* By which libc knows the object that a handler is of. The start files have it,
 * and we do without those. */
extern void *__dso_handle __attribute__((weak, visibility("hidden")));
void *__dso_handle = &__dso_handle;

static void forked(void)
{
	aq_lookup_forked();
	aq_shares_forked();
	aq_pointers_forked();
	aq_pools_forked();
	aq_vmm_forked();
	aq_contexts_forked();
	aq_arrays_forked();
	aq_sparse_forked();
	aq_graphs_forked();
	aq_cores_forked();
	aq_samples_forked();
}

void aq_fork_watch(void)
{
	static bool watching;

	if (!__atomic_load_n(&watching, __ATOMIC_ACQUIRE) &&
	    !__atomic_exchange_n(&watching, true, __ATOMIC_ACQ_REL))
		pthread_atfork(NULL, NULL, forked);
}
