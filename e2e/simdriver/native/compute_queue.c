/* Who has a queue, what it will come to, and taking back what was cut short. */
#include "compute_step.h"

#include <string.h>

void compute_repair(struct compute *c)
{
	while (c->undo_count > 0) {
		uint64_t at = c->undo_count - 1;
		*(volatile uint64_t *)((char *)c + c->undo[at].offset) =
			c->undo[at].value;
		atomic_signal_fence(memory_order_seq_cst);
		*(volatile uint64_t *)&c->undo_count = at;
	}
}

/* What the queue still has to do up to an entry, as far as can be told. */
static uint64_t work_until(struct compute *c, struct compute_queue *queue,
			   uint64_t entries)
{
	uint64_t q = number_of(c, queue);
	const struct compute_entry *head = head_of(c, queue);
	uint64_t left = queue->begun ? queue->left : head->duration;

	return compute_entry(c, q, entries - 1)->total - head->total + left;
}

/* Those that are ready, in the order in which they will run. */
static unsigned line_up(struct compute *c, uint64_t gpu, unsigned *line,
			uint64_t *left)
{
	const struct compute_gpu *card = &c->gpus[gpu];
	uint64_t first = card->last + (card->current == 0);
	unsigned count = 0;

	for (uint64_t i = 0; i < c->high; i++) {
		uint64_t at = (first + i) % c->high;
		struct compute_queue *queue = &c->queues[at];
		if (queue->gpu != gpu || ready_at(c, queue) > c->now)
			continue;
		line[count] = (unsigned)at;
		left[count++] = spins(c, queue) ?
					COMPUTE_NEVER :
					work_until(c, queue, queue->tail);
	}
	return count;
}

uint64_t compute_forecast(struct compute *c, unsigned queue, uint64_t done,
			  uint64_t horizon)
{
	struct compute_queue *own = &c->queues[queue];
	const struct compute_gpu *card = &c->gpus[own->gpu];
	unsigned line[COMPUTE_QUEUES];
	uint64_t left[COMPUTE_QUEUES];

	if (ready_at(c, own) > c->now || spins(c, own))
		return c->now + COMPUTE_POLL;
	unsigned count = line_up(c, own->gpu, line, left);
	uint64_t need = work_until(c, own, done), at = c->now;
	uint64_t slice = card->current == 0 ? card->slice :
					      slice_end(c, card) - c->now;
	for (unsigned i = 0; at < horizon; i = (i + 1) % count) {
		uint64_t time = left[i] < slice || count == 1 ? left[i] : slice;
		if (line[i] == queue && need <= time)
			return at + need < horizon ? at + need : horizon;
		if (line[i] == queue)
			need -= time;
		if (left[i] != COMPUTE_NEVER)
			left[i] -= time;
		at += time;
		slice = card->slice;
	}
	return horizon;
}

/* Nobody has work or anyone to meet. The clock may have begun anew, as after a
 * boot, or be another one. What is cut short here the next one does again. */
static void restart(struct compute *c, uint64_t now)
{
	*(volatile uint64_t *)&c->meet_count = 0;
	if (c->now <= now)
		return;
	for (unsigned g = 0; g < COMPUTE_ENGINES; g++)
		for (unsigned i = 0; i < COMPUTE_HISTORY; i++)
			c->gpus[g].history[i] = c->gpus[g].busy;
	*(volatile uint64_t *)&c->marks = now / COMPUTE_PERIOD;
	*(volatile uint64_t *)&c->checked = now;
	*(volatile uint64_t *)&c->now = now;
}

static bool engine_idle(const struct compute *c, unsigned engine)
{
	for (unsigned i = 0; i < c->high; i++)
		if (c->queues[i].owner != 0 && c->queues[i].gpu == engine)
			return false;
	return true;
}

int compute_engine(struct compute *c, unsigned card, uint64_t partition)
{
	unsigned at = SIM_MAX_GPUS;

	for (; at < COMPUTE_ENGINES; at++)
		if (c->gpus[at].partition == partition)
			return (int)at;
	for (at = SIM_MAX_GPUS; at < COMPUTE_ENGINES; at++)
		if (c->gpus[at].partition == 0 || engine_idle(c, at))
			break;
	if (at == COMPUTE_ENGINES)
		return -1;
	put(c, &c->gpus[at].card, card);
	put(c, &c->gpus[at].slice, c->gpus[card].slice);
	put(c, &c->gpus[at].partition, partition);
	commit(c);
	return (int)at;
}

int compute_claim(struct compute *c, uint64_t owner, unsigned gpu,
		  uint64_t now)
{
	unsigned found = 0, owned = 0;

	while (found < c->high && c->queues[found].owner != 0)
		found++;
	if (found == COMPUTE_QUEUES)
		return -1;
	for (unsigned i = 0; i < c->high; i++)
		owned += c->queues[i].owner != 0;
	if (owned == 0)
		restart(c, now);
	struct compute_queue *queue = &c->queues[found];
	memset(queue, 0, sizeof(*queue)); /* of nobody's concern yet */
	queue->gpu = gpu;
	atomic_signal_fence(memory_order_seq_cst);
	if (c->cards <= gpu)
		*(volatile uint32_t *)&c->cards = gpu + 1;
	if (c->high <= found)
		*(volatile uint32_t *)&c->high = found + 1;
	put(c, &queue->owner, owner);
	commit(c);
	return (int)found;
}

void compute_drop(struct compute *c, unsigned queue)
{
	struct compute_queue *dead = &c->queues[queue];
	struct compute_gpu *card = &c->gpus[dead->gpu];

	if (dead->owner == 0)
		return;
	if (spins(c, dead)) {
		struct compute_meet *meet = &c->meets[head_of(c, dead)->other];
		put(c, &meet->arrived, meet->arrived - 1 - dead->joined);
	}
	put(c, &dead->begun, 0);
	put(c, &dead->owner, 0);
	if (card->current == queue + 1)
		put(c, &card->current, 0);
	commit(c);
}

int compute_meeting(struct compute *c, const char *key, unsigned parties)
{
	for (unsigned i = 0; i < c->meet_count; i++)
		if (c->meets[i].parties == parties &&
		    strcmp(c->meets[i].key, key) == 0)
			return (int)i;
	if (c->meet_count == COMPUTE_MEETS ||
	    strlen(key) >= sizeof(c->meets[0].key))
		return -1;
	struct compute_meet *meet = &c->meets[c->meet_count];
	memset(meet, 0, sizeof(*meet)); /* of nobody's concern yet */
	strcpy(meet->key, key);
	meet->parties = parties;
	put(c, &c->meet_count, c->meet_count + 1);
	commit(c);
	return (int)c->meet_count - 1;
}

unsigned compute_use(const struct compute *c,
		     const uint64_t history[COMPUTE_HISTORY])
{
	uint64_t now = history[c->marks % COMPUTE_HISTORY];
	uint64_t then = history[(c->marks - COMPUTE_WINDOW) % COMPUTE_HISTORY];

	return (unsigned)((now - then) * 1000 /
			  (COMPUTE_WINDOW * COMPUTE_PERIOD));
}
