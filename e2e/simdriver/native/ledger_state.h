/* What the parts of the ledger share with each other, and with nobody else. */
#ifndef SIM_LEDGER_STATE_H
#define SIM_LEDGER_STATE_H

#include "ledger.h"

#include <pthread.h>

/* Where a test may let the process die. */
#ifndef LEDGER_STEP
#define LEDGER_STEP(step) ((void)0)
#endif

/* This process's view. */
extern struct ledger_process {
	pthread_mutex_t mutex; /* record locks do not tell threads apart */
	struct ledger *map;
	int fd;
	bool writable;
	int slot; /* -1 until joined */
	uint32_t generation;
	struct ledger_partition partition;
} ledger_own;

/* Takes the region. What a killed process left half done is repaired first. */
bool ledger_enter(void);
void ledger_leave(void);

/* Totals may be behind the slots while it is set. Within the region only. */
void ledger_set_dirty(struct ledger *l, uint32_t dirty);

/* Frees what the dead left. Within the region only. */
void ledger_reap(struct ledger *l);

bool ledger_set_lock(int command, short type, uint64_t byte);
uint64_t ledger_slot_byte(unsigned slot);

/* Whether the slot's owner lives, and the pid by which we know it (0: its pid
 * namespace is not below ours, or it is this process). */
bool ledger_slot_lives(unsigned index, uint32_t *pid);

#endif
