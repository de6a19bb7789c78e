/* The model of the cards: whose turn it is, and what becomes of its work. */
#include "compute_step.h"

/* The queue after the last one that is ready, or NULL. The one that runs is not
 * asked. *arrival gets the earliest time at which another one will be. */
static struct compute_queue *next_ready(struct compute *c, uint64_t gpu,
					uint64_t *arrival)
{
	const struct compute_gpu *card = &c->gpus[gpu];

	*arrival = COMPUTE_NEVER;
	for (uint64_t i = 1; i <= c->high; i++) {
		uint64_t at = (card->last + i) % c->high;
		struct compute_queue *queue = &c->queues[at];
		if (queue->gpu != gpu || card->current == at + 1)
			continue;
		uint64_t ready = ready_at(c, queue);
		if (ready <= c->now)
			return queue;
		if (ready < *arrival)
			*arrival = ready;
	}
	return NULL;
}

static void arrive(struct compute *c, struct compute_queue *queue,
		   struct compute_meet *meet)
{
	put(c, &queue->round, meet->round);
	if (meet->arrived + 1 < meet->parties) {
		put(c, &meet->arrived, meet->arrived + 1);
		return;
	}
	put(c, &meet->arrived, 0);
	put(c, &meet->round, meet->round + 1);
}

static void begin(struct compute *c, struct compute_queue *queue)
{
	const struct compute_entry *head = head_of(c, queue);

	put(c, &queue->begun, 1);
	put(c, &queue->left, head->duration);
	if (head->kind == COMPUTE_MEET && queue->joined > 0)
		put(c, &queue->joined, queue->joined - 1);
	else if (head->kind == COMPUTE_MEET)
		arrive(c, queue, &c->meets[head->other]);
	commit(c);
}

/* The entry that would come to the meeting of the one that spins: the next, if
 * it is of the same key and of a stream that has not come yet. */
static struct compute_entry *to_join(struct compute *c,
				     struct compute_queue *queue)
{
	uint64_t q = number_of(c, queue);
	uint64_t at = queue->done + 1 + queue->joined;

	if (at >= queue->tail)
		return NULL;
	struct compute_entry *entry = compute_entry(c, q, at);
	if (entry->kind != COMPUTE_MEET ||
	    entry->other != head_of(c, queue)->other)
		return NULL;
	for (uint64_t i = queue->done; i < at; i++)
		if (compute_entry(c, q, i)->stream == entry->stream)
			return NULL;
	return entry;
}

static bool join(struct compute *c, struct compute_queue *queue)
{
	const struct compute_entry *entry = to_join(c, queue);

	if (entry == NULL || entry->submitted > c->now)
		return false;
	put(c, &queue->joined, queue->joined + 1);
	arrive(c, queue, &c->meets[entry->other]);
	commit(c);
	return true;
}

static void finish(struct compute *c, struct compute_queue *queue)
{
	head_of(c, queue)->end = c->now;
	put(c, &queue->begun, 0);
	put(c, &queue->done, queue->done + 1);
	commit(c);
}

/* What the queue that runs does without time passing. False: nothing. */
static bool work(struct compute *c, struct compute_gpu *card)
{
	struct compute_queue *queue = &c->queues[card->current - 1];

	if (!queue->begun) {
		if (ready_at(c, queue) <= c->now) {
			begin(c, queue);
			return true;
		}
		put(c, &card->current, 0);
		commit(c);
		return true;
	}
	if (spins(c, queue))
		return join(c, queue);
	if (queue->left > 0)
		return false;
	finish(c, queue);
	return true;
}

/* Gives the card to the next one, if its turn has come. */
static bool turn(struct compute *c, uint64_t gpu)
{
	struct compute_gpu *card = &c->gpus[gpu];
	uint64_t arrival;

	if (card->current != 0 && slice_end(c, card) > c->now)
		return false;
	struct compute_queue *next = next_ready(c, gpu, &arrival);
	if (next == NULL)
		return false;
	put(c, &card->current, number_of(c, next) + 1);
	put(c, &card->last, number_of(c, next));
	put(c, &card->slice_end, c->now + card->slice);
	commit(c);
	return true;
}

/* All that happens at this very moment. */
static void settle(struct compute *c)
{
	bool changed = true;

	while (changed) {
		changed = false;
		for (uint64_t g = 0; g < c->cards; g++) {
			struct compute_gpu *card = &c->gpus[g];
			while ((card->current != 0 && work(c, card)) ||
			       turn(c, g))
				changed = true;
		}
	}
}

/* The next time at which something happens on a card that has settled. */
static uint64_t next_event(struct compute *c, uint64_t gpu)
{
	struct compute_gpu *card = &c->gpus[gpu];
	uint64_t at;

	if (next_ready(c, gpu, &at) != NULL)
		at = slice_end(c, card);
	if (card->current == 0)
		return at;
	struct compute_queue *queue = &c->queues[card->current - 1];
	if (!spins(c, queue))
		return at < c->now + queue->left ? at : c->now + queue->left;
	const struct compute_entry *entry = to_join(c, queue);
	if (entry != NULL && entry->submitted < at)
		at = entry->submitted;
	return at;
}

static void run(struct compute *c, uint64_t until)
{
	uint64_t time = until - c->now;

	for (uint64_t g = 0; g < c->cards; g++) {
		struct compute_gpu *card = &c->gpus[g];
		if (card->current == 0)
			continue;
		struct compute_queue *queue = &c->queues[card->current - 1];
		put(c, &card->busy, card->busy + time);
		put(c, &queue->busy, queue->busy + time);
		if (!spins(c, queue))
			put(c, &queue->left, queue->left - time);
	}
	put(c, &c->now, until);
	commit(c);
}

/* Notes what everyone has used when a period ends. The notes that are written
 * over are older than the window. */
static void mark(struct compute *c)
{
	uint64_t at = (c->marks + 1) % COMPUTE_HISTORY;

	for (uint64_t g = 0; g < c->cards; g++)
		c->gpus[g].history[at] = c->gpus[g].busy;
	for (uint64_t i = 0; i < c->high; i++)
		c->queues[i].history[at] = c->queues[i].busy;
	put(c, &c->marks, c->marks + 1);
	commit(c);
}

static bool any_runs(const struct compute *c)
{
	for (unsigned g = 0; g < c->cards; g++)
		if (c->gpus[g].current != 0)
			return true;
	return false;
}

/* False: there was nothing to note. While nothing runs no use changes, so the
 * notes of long idleness are made afterwards, and only those still told of. */
static bool catch_up(struct compute *c)
{
	uint64_t past = c->now / COMPUTE_PERIOD;

	if (past <= c->marks)
		return false;
	if (past > c->marks + COMPUTE_HISTORY) {
		put(c, &c->marks, past - COMPUTE_HISTORY);
		commit(c);
	}
	mark(c);
	return true;
}

void compute_advance(struct compute *c, uint64_t until)
{
	for (;;) {
		uint64_t at = until, period_end;
		if (catch_up(c))
			continue;
		settle(c);
		for (uint64_t g = 0; g < c->cards; g++) {
			uint64_t event = next_event(c, g);
			if (event < at)
				at = event;
		}
		period_end = (c->marks + 1) * COMPUTE_PERIOD;
		if (period_end < at && any_runs(c))
			at = period_end;
		if (at <= c->now)
			return;
		run(c, at);
	}
}
