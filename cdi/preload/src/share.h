/*
 * The shares of this container, and the GPUs they are of.
 */
#ifndef AQ_SHARE_H
#define AQ_SHARE_H

#include "../abi.h"
#include "agent.h"
#include "functions.h"
#include "lock.h"
#include "quota.h"

#ifndef AQ_SHARES_DIR
#define AQ_SHARES_DIR "/run/aliquot/shares"
#endif

#define AQ_SHARES_MAX 64 /* of one container; more: closed */
#define AQ_NAME_MAX 128	 /* of an entry: GPU UUID, dot, share id */
#define AQ_PATH_MAX (sizeof(AQ_SHARES_DIR) + AQ_NAME_MAX + 16)

struct aq_gpu;

/*
 * One share. What this process holds of it is kept twice: in `mirror`, which is
 * ours alone, and in the charge word of our slot of the region, which others add
 * up. Should the slot be lost (the host closed our descriptor, which drops the
 * lock), the mirror fills the next one. `place` says which slot that is; its
 * epoch, which is also the mirror's generation, changes with it, so that every
 * change of the mirror is known to lie before a move or after it.
 */
struct aq_share {
	char name[AQ_NAME_MAX];
	struct aq_quota quota;
	uint64_t limit; /* units */
	struct aq_gpu *gpu;
	const struct aq_agent *agent; /* read-only */
	struct aq_agent_view agent_seen;
	struct aq_lock agent_lock; /* of agent_seen */
	struct aq_usage *region;
	int fd;
	dev_t device;
	ino_t inode;
	struct aq_lock slot_lock; /* among our threads: claim, move, reap */

	uint64_t pools, contexts; /* bytes, as noted in our slot */

	_Alignas(64) uint64_t place;
	uint64_t mirror; /* a charge word */
};

/* A GPU with at least one share. closed: its shares cannot be trusted, and
 * limit is 0. */
struct aq_gpu {
	uint8_t uuid[16];
	bool closed;
	uint8_t index; /* in aq_gpus */
	uint8_t share_count;
	uint8_t shares[AQ_SHARES_MAX]; /* by name, so the same everywhere */
	uint64_t limit;		       /* units, of all its shares */
	uint64_t memory_bytes;	       /* the same, as the view shows it */
	uint64_t context_seq; /* the agent's, when contexts.c last looked */
	struct aq_lock short_lock;     /* among our threads: memory is short */
	struct aq_lock release_lock;   /* and: one release at a time */
};

extern struct aq_share aq_shares[AQ_SHARES_MAX];
extern struct aq_gpu aq_gpus[AQ_SHARES_MAX + 1];

static inline struct aq_share *aq_gpu_share(const struct aq_gpu *gpu,
					    unsigned i)
{
	return &aq_shares[gpu->shares[i]];
}

/* Scans the directory, at the first call only. */
void aq_shares_load(void);

/* The GPU with that UUID, or NULL when it has no share and so no limit. */
struct aq_gpu *aq_gpu_by_uuid(const uint8_t uuid[16]);

/* The GPU of a device, or of the calling thread's context. *gpu is NULL when it
 * is not limited. Anything but CUDA_SUCCESS is what the driver said, and what
 * the host is to be told. */
CUresult aq_gpu_of_device(CUdevice device, struct aq_gpu **gpu);
CUresult aq_gpu_current(struct aq_gpu **gpu);

/* The path of one of a share's files. */
void aq_share_path(char path[AQ_PATH_MAX], const struct aq_share *share,
		   const char *file);

/* region.c */
/* Maps the usage file. NULL, or what is wrong with it. */
const char *aq_region_open(struct aq_share *share);

#endif
