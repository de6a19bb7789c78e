/*
 * The compute engines of all cards: what each process asked for, in its order,
 * and how far the cards have come with it.
 *
 * Nothing runs. Whoever looks brings the state from the time of the last look
 * to the present, as the cards would have worked meanwhile: a card runs one
 * process at a time and goes round those that have work in slices of time.
 * All cards are brought forward together, since a function of one may wait for
 * one of another.
 *
 * The state is one file beside the ledger, mapped by every process. To submit
 * takes no lock: an entry carries the time at which it was submitted. All else
 * happens under one lock word that names its holder. When that one was killed,
 * the next rolls back what it had not finished, word by word, and goes on; and
 * what a dead process had submitted is dropped.
 */
#ifndef SIM_COMPUTE_H
#define SIM_COMPUTE_H

#include <stdatomic.h>

#include "sim.h"

#define COMPUTE_MAGIC 0x53494d43u /* "SIMC" */
#define COMPUTE_VERSION 2u
#define COMPUTE_QUEUES 1024 /* processes with work, times their cards */
#define COMPUTE_RING 1024   /* launches outstanding in one */
#define COMPUTE_MEETS 256
#define COMPUTE_PARTITIONS 64 /* with work, of all cards together */
#define COMPUTE_ENGINES (SIM_MAX_GPUS + COMPUTE_PARTITIONS)
#define COMPUTE_UNDO 256
#define COMPUTE_NEVER UINT64_MAX

/* Times are nanoseconds of CLOCK_MONOTONIC. */
/* How often one looks at what cannot be foretold. */
#define COMPUTE_POLL UINT64_C(200000)
/* Use is noted six times a second and told of the last second. */
#define COMPUTE_PERIOD (UINT64_C(1000000000) / 6)
#define COMPUTE_WINDOW 6
#define COMPUTE_HISTORY 8 /* more than the window, a power of two */

enum compute_kind {
	COMPUTE_BUSY, /* runs for its duration */
	COMPUTE_MEET, /* spins until its meeting is complete, then runs */
	COMPUTE_WAIT, /* the process rests until another queue has come so far */
};

struct compute_entry {
	uint64_t submitted;
	uint64_t duration;
	uint64_t total; /* of the durations of its queue, up to this one's */
	uint64_t end;	/* when it was done */
	uint64_t after; /* COMPUTE_WAIT: what must be done in the other queue */
	uint32_t kind;
	uint32_t other;	 /* COMPUTE_WAIT: a queue; COMPUTE_MEET: a meeting */
	uint32_t stream; /* tells the streams of a process apart */
	uint32_t unused;
};

/* What one process submitted to one card. Entries are counted from 0 for ever
 * and lie in the ring at their number modulo its size. */
struct compute_queue {
	uint64_t owner; /* compute_owner of its process, 0: nobody's */
	uint64_t gpu;
	_Atomic uint64_t tail; /* written by its process alone */
	_Atomic uint64_t done; /* entries before this one are */
	uint64_t begun;	       /* 1: entry `done` has */
	uint64_t left;	       /* of its duration */
	uint64_t round;	       /* of the meeting that it has come to */
	uint64_t joined; /* later entries that have come to the same one */
	uint64_t busy;	 /* time that it had of the card */
	uint64_t history[COMPUTE_HISTORY];
};

/* A card, or beyond the cards a partition of one, which works by itself. */
struct compute_gpu {
	uint64_t partition; /* serial of the compute instance, 0: none */
	uint64_t card;	    /* of which it is */
	uint64_t slice;
	uint64_t current; /* 1 + the queue that runs, 0: idle */
	uint64_t last;	  /* the queue that ran last */
	uint64_t slice_end;
	uint64_t busy;
	uint64_t history[COMPUTE_HISTORY];
};

/* Functions of one key wait for each other, as those of a collective do. */
struct compute_meet {
	char key[40];
	uint64_t parties;
	uint64_t round;	  /* how many were complete */
	uint64_t arrived; /* in this round */
};

struct compute {
	uint32_t magic, version, size;
	uint32_t high;	/* queues [0, high) were ever used */
	uint32_t cards; /* and cards [0, cards) */
	uint32_t unused;
	_Atomic uint64_t holder; /* of the lock: compute_owner, or 0 */
	_Atomic uint64_t sequence; /* odd while locked */
	uint64_t epoch; /* CLOCK_REALTIME less CLOCK_MONOTONIC, at the start */
	uint64_t now;	/* the time that the state is of */
	uint64_t marks; /* periods of which the end was noted */
	uint64_t checked; /* when dead processes were last looked for */
	uint64_t undo_count;
	struct {
		uint64_t offset, value;
	} undo[COMPUTE_UNDO];
	uint64_t meet_count;
	struct compute_meet meets[COMPUTE_MEETS];
	struct compute_gpu gpus[COMPUTE_ENGINES];
	struct compute_queue queues[COMPUTE_QUEUES];
	struct compute_entry rings[COMPUTE_QUEUES][COMPUTE_RING];
};

/* A process, as the ledger knows it. Never 0. */
static inline uint64_t compute_owner(unsigned slot, uint32_t generation)
{
	return (uint64_t)(slot + 1) << 32 | generation;
}

static inline struct compute_entry *compute_entry(struct compute *c,
						  uint64_t queue,
						  uint64_t number)
{
	return &c->rings[queue][number % COMPUTE_RING];
}

/* compute.c: the model, which knows neither clock nor processes. */

/* Lets the cards work until then. */
void compute_advance(struct compute *c, uint64_t until);
/* When the queue will have done so many entries if nobody submits anything
 * more; no later than the horizon, at which one must look again, and always
 * later than now. */
uint64_t compute_forecast(struct compute *c, unsigned queue, uint64_t done,
			  uint64_t horizon);
/* What works for a partition of a card: its number among the cards, or -1. */
int compute_engine(struct compute *c, unsigned card, uint64_t partition);
/* The card that a queue's work is done on, whole or by a partition of it. */
static inline uint64_t compute_card(const struct compute *c,
				    const struct compute_queue *queue)
{
	return queue->gpu < SIM_MAX_GPUS ? queue->gpu :
					   c->gpus[queue->gpu].card;
}
/* A queue for a process on a card, or -1. */
int compute_claim(struct compute *c, uint64_t owner, unsigned gpu,
		  uint64_t now);
/* The process is dead: its work vanishes. */
void compute_drop(struct compute *c, unsigned queue);
/* Which meeting a key and a number of parties mean, or -1. */
int compute_meeting(struct compute *c, const char *key, unsigned parties);
/* Rolls back what a killed holder of the lock left half done. */
void compute_repair(struct compute *c);
/* Parts in a thousand of the last second, as of the last note. */
unsigned compute_use(const struct compute *c,
		     const uint64_t history[COMPUTE_HISTORY]);

/* compute_file.c */

uint64_t compute_clock(void);
/* Waits until then, or until a signal was handled. */
void compute_sleep(uint64_t until);
/* Maps the state for writing. This process must have joined the ledger. */
bool compute_open(const char *root, const struct sim_hardware *hardware);
/* Takes the state, free of the dead and brought to the present. One thread of
 * a process at a time. */
struct compute *compute_lock(void);
void compute_unlock(void);
/* This process as an owner of queues. */
uint64_t compute_self(void);
/* A copy of the state, brought to the present, for those who may only read.
 * NULL when nobody has submitted anything yet. The ledger must be open. */
struct compute *compute_copy(const char *root);
void compute_drop_copy(struct compute *copy);

#endif
