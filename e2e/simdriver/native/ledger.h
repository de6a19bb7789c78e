/*
 * The ledger: what the simulated hardware has given out, and to whom.
 *
 * It is one file, mapped by every process that uses the simulated driver, in
 * whatever container. Only whole blocks are counted. It is exact: a grant is
 * made under one lock, so the cards never give out more than they have.
 *
 * Death. A process holds a POSIX record lock on one byte for each slot it owns;
 * the kernel drops it whenever the process ends, SIGKILL included, so a slot
 * whose byte is free belongs to the dead and its bytes come back. The region
 * lock is a record lock too and so cannot be left behind. A process killed in
 * the middle of an update leaves `dirty` set; the next one to take the lock
 * recomputes every total from the slots, whose single words are always whole.
 *
 * Record locks die with any descriptor of the file: nobody may open and close
 * the ledger in a process that uses the driver, and the libraries never close
 * it. That is why others read it through the ledger program.
 */
#ifndef SIM_LEDGER_H
#define SIM_LEDGER_H

#include "sim.h"

#define LEDGER_MAGIC 0x53494d4cu /* "SIML" */
#define LEDGER_VERSION 2u
#define LEDGER_SLOTS 1024
#define LEDGER_GROUPS 512
#define LEDGER_LOCK_BASE (UINT64_C(1) << 30) /* region; slot i is at +1+i */

struct ledger_count {
	uint64_t used, peak; /* bytes, whole blocks */
};

/* A container, as far as a process can tell: one mount namespace and one host
 * name. Kept after its processes are gone, so that its peak can be read. */
struct ledger_group {
	uint64_t mount_namespace;
	uint64_t last_join; /* order of use, for giving the line to another */
	char hostname[65];
	struct ledger_count gpus[SIM_MAX_GPUS];
};

/* The MIG device that a process works on: it has one at most. */
struct ledger_partition {
	uint64_t instance; /* serial of the GPU instance, 0: no MIG device */
	uint64_t compute;  /* and of the compute instance */
	uint32_t gpu, instance_number, compute_number;
	uint32_t unused;
};

struct ledger_slot {
	uint32_t in_use;
	uint32_t generation;  /* changes whenever the slot changes hands */
	uint32_t pid;	      /* in the process's own namespace */
	uint32_t group;
	uint64_t pid_namespace;
	uint64_t start_ticks; /* since boot, tells a reused pid */
	char command[16];
	struct ledger_partition partition;
	uint32_t contexts[SIM_MAX_GPUS]; /* that live */
	uint64_t used[SIM_MAX_GPUS];
};

struct ledger {
	uint32_t magic, version, size;
	uint32_t dirty;	    /* totals may be behind the slots */
	uint32_t high;	    /* slots [0, high) were ever used */
	uint32_t group_high;
	uint64_t joins;
	struct ledger_count gpus[SIM_MAX_GPUS];
	struct ledger_group groups[LEDGER_GROUPS];
	struct ledger_slot slots[LEDGER_SLOTS];
};

/* Opens the ledger for writing, or only for reading when the root is mounted
 * read-only. A second call keeps what the first one opened. */
bool ledger_open(const char *root);

/* Makes this process known, as a context does on the real driver. */
bool ledger_join(void);

/* Says which MIG device this process works on, before it joins. Its memory is
 * then taken of the partition. */
void ledger_choose(const struct ledger_partition *partition);

/* Makes this process known and counts a context, if the device is still there,
 * which there says; it is asked while nobody can take the device away. */
enum ledger_begin { LEDGER_BEGUN, LEDGER_FULL, LEDGER_NO_DEVICE };
enum ledger_begin ledger_begin(unsigned gpu, bool (*there)(unsigned gpu));
void ledger_end(unsigned gpu);

/* Runs change while nobody can begin a context, unless a living process has one
 * on the card, or on the compute instance with that serial. False: it has. */
bool ledger_unless_used(unsigned gpu, uint64_t compute,
			void (*change)(void *context), void *context);

/* Takes bytes, a multiple of the block, of a card, or of the partition of it on
 * which this process works, that has capacity bytes. */
bool ledger_take(unsigned gpu, uint64_t bytes, uint64_t capacity);
void ledger_give(unsigned gpu, uint64_t bytes);

/* Bytes that living processes hold. Takes no lock and works read-only. */
uint64_t ledger_used(unsigned gpu);
/* The same of a GPU instance, by its serial. */
uint64_t ledger_used_in(unsigned gpu, uint64_t instance);

/* Calls visit for each living process. pid is the one that the caller's own
 * pid namespace knows, or the process's own number where it knows none. */
typedef void ledger_visit(void *context, const struct ledger_slot *slot,
			  uint32_t pid);
void ledger_each(ledger_visit *visit, void *context);

/* This process's slot; false before it joined. */
bool ledger_self(unsigned *slot, uint32_t *generation);
/* Whether the process lives that had the slot in that generation; *pid as for
 * ledger_visit. */
bool ledger_lives(unsigned slot, uint32_t generation, uint32_t *pid);

/* In a forked child: nothing of the parent's account is the child's. */
void ledger_forked(void);

/* Frees what the dead left and returns the ledger, held still until unlock. */
const struct ledger *ledger_lock(void);
void ledger_unlock(void);

#endif
