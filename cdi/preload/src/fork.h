/*
 * A forked child starts anew: no CUDA context, no slot, no allocation of its
 * own, and locks that no thread will ever open. It keeps the shares and their
 * mapped regions, and takes a slot of its own when it first allocates.
 */
#ifndef AQ_FORK_H
#define AQ_FORK_H

/* Before any lock of ours is taken for the first time. */
void aq_fork_watch(void);

/* Each in the file that holds the state. */
void aq_lookup_forked(void);
void aq_shares_forked(void);
void aq_pointers_forked(void);
void aq_pools_forked(void);
void aq_vmm_forked(void);
void aq_contexts_forked(void);
void aq_arrays_forked(void);
void aq_sparse_forked(void);
void aq_graphs_forked(void);
void aq_cores_forked(void);
void aq_samples_forked(void);

#endif
