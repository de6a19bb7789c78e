/*
 * How the model changes its state. Every word is noted before it is written, so
 * that a step that was cut short can be taken back; commit ends a step, after
 * which the state is one that could be found at leisure. The order of writing
 * only matters to whoever takes the lock of a process that is dead, and the dead
 * have written all that came before, so it is kept by the compiler alone.
 */
#ifndef SIM_COMPUTE_STEP_H
#define SIM_COMPUTE_STEP_H

#include "compute.h"

/* Where a test may let the process die. */
#ifndef COMPUTE_STEP
#define COMPUTE_STEP() ((void)0)
#endif

static inline void put(struct compute *c, volatile void *word, uint64_t value)
{
	uint64_t at = c->undo_count;

	c->undo[at].offset = (uint64_t)((volatile char *)word - (char *)c);
	c->undo[at].value = *(volatile uint64_t *)word;
	atomic_signal_fence(memory_order_seq_cst);
	COMPUTE_STEP();
	*(volatile uint64_t *)&c->undo_count = at + 1;
	atomic_signal_fence(memory_order_seq_cst);
	COMPUTE_STEP();
	*(volatile uint64_t *)word = value;
}

static inline void commit(struct compute *c)
{
	atomic_signal_fence(memory_order_seq_cst);
	COMPUTE_STEP();
	*(volatile uint64_t *)&c->undo_count = 0;
	atomic_signal_fence(memory_order_seq_cst);
	COMPUTE_STEP();
}

static inline uint64_t number_of(const struct compute *c,
				 const struct compute_queue *queue)
{
	return (uint64_t)(queue - c->queues);
}

static inline struct compute_entry *head_of(struct compute *c,
					    struct compute_queue *queue)
{
	return compute_entry(c, number_of(c, queue), queue->done);
}

/* Whether the queue's next entry is one that spins for others to come. */
static inline bool spins(struct compute *c, struct compute_queue *queue)
{
	const struct compute_entry *head = head_of(c, queue);

	return queue->begun && head->kind == COMPUTE_MEET &&
	       c->meets[head->other].round == queue->round;
}

/* When the queue can use the card: now or earlier, at a later submission, or
 * COMPUTE_NEVER as far as can be told. */
static inline uint64_t ready_at(struct compute *c, struct compute_queue *queue)
{
	if (queue->owner == 0 || queue->done >= queue->tail)
		return COMPUTE_NEVER;
	const struct compute_entry *head = head_of(c, queue);
	if (head->kind == COMPUTE_WAIT &&
	    c->queues[head->other].done < head->after &&
	    c->queues[head->other].owner == queue->owner)
		return COMPUTE_NEVER;
	return head->submitted;
}

/* Where slices end while nobody else wants the card. */
static inline uint64_t slice_end(const struct compute *c,
				 const struct compute_gpu *card)
{
	if (card->slice_end >= c->now)
		return card->slice_end;
	return card->slice_end +
	       sim_round_up(c->now - card->slice_end, card->slice);
}

#endif
