/*
 * Checks of the model of the cards, with a clock that the check turns. It is
 * compiled into this program, so that a step can be cut short.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static long steps, last_step; /* 0: none is the last */
static jmp_buf dead;

static void step(void)
{
	if (++steps == last_step)
		longjmp(dead, 1);
}
#define COMPUTE_STEP() step()

#include "../native/compute.c"
#include "../native/compute_queue.c"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define SLICE (2 * MS)

static int failures;

#define EQUAL(got, want) \
	do { \
		unsigned long long g_ = (unsigned long long)(got); \
		unsigned long long w_ = (unsigned long long)(want); \
		if (g_ != w_) { \
			printf("%s:%d: %s is %llu, want %llu\n", __FILE__, \
			       __LINE__, #got, g_, w_); \
			failures++; \
		} \
	} while (0)

static void start_state(struct compute *c, uint64_t now)
{
	for (unsigned g = 0; g < SIM_MAX_GPUS; g++)
		c->gpus[g].slice = SLICE;
	c->now = now;
	c->marks = now / COMPUTE_PERIOD;
}

static struct compute *new_state(uint64_t now)
{
	struct compute *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	start_state(c, now);
	return c;
}

static unsigned process(struct compute *c, unsigned slot, unsigned gpu)
{
	return (unsigned)compute_claim(c, compute_owner(slot, 1), gpu, c->now);
}

static void submit(struct compute *c, unsigned queue, uint64_t at,
		   struct compute_entry entry)
{
	uint64_t tail = c->queues[queue].tail;

	entry.submitted = at;
	entry.total = entry.duration;
	if (tail > 0)
		entry.total += compute_entry(c, queue, tail - 1)->total;
	*compute_entry(c, queue, tail) = entry;
	c->queues[queue].tail = tail + 1;
}

static void busy(struct compute *c, unsigned queue, uint64_t at, uint64_t time)
{
	submit(c, queue, at, (struct compute_entry){ .duration = time });
}

static void meet(struct compute *c, unsigned queue, uint64_t at, uint64_t time,
		 const char *key, unsigned parties, unsigned stream)
{
	submit(c, queue, at,
	       (struct compute_entry){
		       .kind = COMPUTE_MEET,
		       .duration = time,
		       .stream = stream,
		       .other = (uint32_t)compute_meeting(c, key, parties),
	       });
}

static uint64_t end(struct compute *c, unsigned queue, uint64_t number)
{
	if (c->queues[queue].done <= number)
		return 0;
	return compute_entry(c, queue, number)->end;
}

static void check_order(void)
{
	struct compute *c = new_state(0);
	unsigned a = process(c, 1, 0);

	busy(c, a, 10 * US, 5 * MS);
	busy(c, a, 20 * US, 3 * MS);
	busy(c, a, 20 * MS, 0); /* takes no time, but comes when the card is idle */
	compute_advance(c, 5 * MS + 9 * US);
	EQUAL(c->queues[a].done, 0);
	compute_advance(c, 5 * MS + 10 * US);
	EQUAL(end(c, a, 0), 5 * MS + 10 * US);
	compute_advance(c, SECOND);
	EQUAL(end(c, a, 1), 8 * MS + 10 * US);
	EQUAL(end(c, a, 2), 20 * MS);
	EQUAL(c->queues[a].busy, 8 * MS);
	EQUAL(c->gpus[0].busy, 8 * MS);
	EQUAL(c->gpus[1].busy, 0);
	EQUAL(c->now, SECOND);
	compute_advance(c, 1); /* time does not go back */
	EQUAL(c->now, SECOND);
}

/* Looking at another time, or more often, changes nothing. */
static void check_looking(void)
{
	struct compute *often = new_state(0), *seldom = new_state(0);
	struct compute *const states[] = { often, seldom };

	for (int s = 0; s < 2; s++) {
		for (unsigned p = 0; p < 3; p++) {
			unsigned q = process(states[s], p + 1, p / 2);
			for (uint64_t i = 0; i < 50; i++)
				busy(states[s], q, i * (700 + p) * US,
				     (i * 37 % 11) * 300 * US);
		}
	}
	for (uint64_t t = 0; t < SECOND; t += 91 * US)
		compute_advance(often, t);
	compute_advance(often, SECOND);
	compute_advance(seldom, SECOND);
	for (unsigned q = 0; q < 3; q++) {
		EQUAL(seldom->queues[q].done, 50);
		for (uint64_t i = 0; i < 50; i++)
			EQUAL(end(often, q, i), end(seldom, q, i));
	}
	EQUAL(memcmp(often->queues, seldom->queues, sizeof(often->queues)), 0);
}

static void check_slices(void)
{
	struct compute *c = new_state(0);
	unsigned a = process(c, 1, 0), b = process(c, 2, 0);

	busy(c, a, 0, 100 * MS);
	busy(c, b, 3 * MS, 100 * MS);
	compute_advance(c, 3 * MS);
	EQUAL(c->queues[a].busy, 3 * MS);
	compute_advance(c, 4 * MS); /* a's slices end every 2 ms */
	EQUAL(c->queues[a].busy, 4 * MS);
	compute_advance(c, 6 * MS);
	EQUAL(c->queues[b].busy, 2 * MS);
	compute_advance(c, 104 * MS);
	EQUAL(c->queues[a].busy, 54 * MS);
	EQUAL(c->queues[b].busy, 50 * MS);
	compute_advance(c, SECOND);
	/* From 4 ms on each had half, till a had its 96 ms. */
	EQUAL(end(c, a, 0), 4 * MS + 2 * 96 * MS);
	EQUAL(end(c, b, 0), 200 * MS);
}

/* One that waits between its launches gives up the rest of its slice; each must
 * come to the front of the line again, whatever the others do. */
static void check_turns(void)
{
	struct compute *c = new_state(0);
	unsigned q[3];

	for (unsigned p = 0; p < 3; p++)
		q[p] = process(c, p + 1, 0);
	busy(c, q[0], 0, 300 * MS);
	busy(c, q[1], 0, 300 * MS);
	for (uint64_t i = 0; i < 20; i++)
		busy(c, q[2], i * 5 * MS, MS);
	compute_advance(c, 100 * MS);
	EQUAL(c->queues[q[2]].done, 20);
	EQUAL(end(c, q[2], 0), 3 * MS); /* after a slice of the second */
	EQUAL(end(c, q[2], 1), 8 * MS); /* the second again */
	EQUAL(c->queues[q[0]].busy, 40 * MS);
	EQUAL(c->queues[q[1]].busy, 40 * MS);
	EQUAL(c->queues[q[2]].busy, 20 * MS);
}

static void check_cards(void)
{
	struct compute *c = new_state(0);
	unsigned a = process(c, 1, 0), b = process(c, 1, 3);

	busy(c, a, 0, 10 * MS);
	submit(c, b, 0, (struct compute_entry){ .kind = COMPUTE_WAIT,
						.other = a, .after = 1 });
	busy(c, b, 0, 5 * MS);
	compute_advance(c, SECOND);
	EQUAL(end(c, b, 0), 10 * MS);
	EQUAL(end(c, b, 1), 15 * MS);
	EQUAL(c->gpus[3].busy, 5 * MS); /* to wait costs nothing */
}

static void check_meetings(void)
{
	struct compute *c = new_state(0);
	unsigned a = process(c, 1, 0), b = process(c, 2, 0);
	unsigned far = process(c, 1, 1);

	/* On different cards. */
	meet(c, a, 0, MS, "far", 2, 1);
	meet(c, far, 7 * MS, 2 * MS, "far", 2, 2);
	compute_advance(c, 6 * MS);
	EQUAL(c->queues[a].busy, 6 * MS); /* it spins */
	compute_advance(c, 20 * MS);
	EQUAL(end(c, a, 0), 8 * MS);
	EQUAL(end(c, far, 0), 9 * MS);

	/* On one card, in turns. */
	meet(c, a, 20 * MS, MS, "near", 2, 1);
	meet(c, b, 20 * MS, MS, "near", 2, 1);
	compute_advance(c, 30 * MS);
	EQUAL(end(c, a, 1), 23 * MS); /* b came first, and spun for a slice */
	EQUAL(end(c, b, 0), 24 * MS);
	EQUAL(c->queues[b].busy, 3 * MS);

	/* In two streams of one process; a third of a stream that has come
	 * is of the next round. */
	meet(c, a, 30 * MS, MS, "near", 2, 1);
	meet(c, a, 31 * MS, MS, "near", 2, 2);
	meet(c, a, 31 * MS, MS, "near", 2, 2);
	compute_advance(c, 40 * MS);
	EQUAL(end(c, a, 2), 32 * MS);
	EQUAL(end(c, a, 3), 33 * MS);
	EQUAL(c->queues[a].done, 4);
	EQUAL(c->meets[1].arrived, 1);

	/* The dead do not meet. */
	compute_drop(c, a);
	EQUAL(c->meets[1].arrived, 0);
	meet(c, b, 40 * MS, MS, "near", 2, 1);
	compute_advance(c, 60 * MS);
	EQUAL(c->queues[b].done, 1);
	EQUAL(compute_meeting(c, "near", 3) != compute_meeting(c, "near", 2), 1);
	char longest[64] = "";
	memset(longest, 'k', 40);
	EQUAL(compute_meeting(c, longest, 2), -1);
}

static void check_death(void)
{
	struct compute *c = new_state(0);
	unsigned a = process(c, 1, 0), b = process(c, 2, 0);

	busy(c, a, 0, SECOND);
	busy(c, b, 0, 10 * MS);
	compute_advance(c, 3 * MS);
	EQUAL(c->gpus[0].current, a + 1);
	compute_drop(c, a);
	EQUAL(c->gpus[0].current, 0);
	compute_advance(c, 50 * MS);
	EQUAL(end(c, b, 0), 11 * MS);
	/* The place is given to the next, who finds nothing in it. */
	unsigned next = process(c, 3, 0);
	EQUAL(next, a);
	EQUAL(c->queues[next].tail, 0);
	EQUAL(c->queues[next].busy, 0);
	compute_advance(c, SECOND);
	EQUAL(c->queues[next].done, 0);
	compute_drop(c, next);
	compute_drop(c, b);
	/* The clock begins anew when nobody is there. */
	next = (unsigned)compute_claim(c, compute_owner(4, 1), 0, 3 * MS);
	EQUAL(c->now, 3 * MS);
	busy(c, next, 3 * MS, MS);
	compute_advance(c, 10 * MS);
	EQUAL(end(c, next, 0), 4 * MS);
	EQUAL(c->meet_count, 0);
}

/* A forecast that nothing disturbs is what comes. */
static void check_forecast(void)
{
	struct compute *c = new_state(0);
	unsigned q[3];

	for (unsigned p = 0; p < 3; p++) {
		q[p] = process(c, p + 1, 0);
		for (uint64_t i = 0; i < 20; i++)
			busy(c, q[p], i * 10 * US,
			     (1 + (i * 7 + p * 3) % 9) * 500 * US);
	}
	compute_advance(c, MS);
	for (unsigned p = 0; p < 3; p++) {
		for (uint64_t i = 1; i <= 20; i++) {
			struct compute *copy = new_state(0);
			uint64_t at = compute_forecast(c, q[p], i,
						       COMPUTE_NEVER);
			memcpy(copy, c, offsetof(struct compute, rings[3]));
			compute_advance(copy, at - 1);
			EQUAL(copy->queues[q[p]].done < i, 1);
			compute_advance(copy, at);
			EQUAL(copy->queues[q[p]].done >= i, 1);
			EQUAL(end(copy, q[p], i - 1), at);
			munmap(copy, sizeof(*copy));
		}
	}
	EQUAL(compute_forecast(c, q[0], 20, 5 * MS), 5 * MS);

	struct compute *s = new_state(0);
	unsigned spinning = process(s, 1, 0), other = process(s, 2, 0);
	meet(s, spinning, 0, 0, "k", 2, 1);
	compute_advance(s, 0);
	busy(s, other, 0, MS);
	EQUAL(compute_forecast(s, spinning, 1, SECOND), COMPUTE_POLL);
	EQUAL(compute_forecast(s, other, 1, SECOND), SLICE + MS);
}

static void check_use(void)
{
	struct compute *c = new_state(SECOND);
	unsigned a = process(c, 1, 0), b = process(c, 2, 0);

	EQUAL(compute_use(c, c->gpus[0].history), 0);
	for (uint64_t i = 0; i < 300; i++) /* 30 % of three seconds */
		busy(c, a, SECOND + i * 10 * MS, 3 * MS);
	compute_advance(c, SECOND + 100 * MS);
	EQUAL(compute_use(c, c->gpus[0].history), 0); /* not noted yet */
	compute_advance(c, 3 * SECOND);
	EQUAL((compute_use(c, c->gpus[0].history) + 5) / 10, 30);
	busy(c, b, 3 * SECOND, 10 * SECOND); /* takes the rest */
	compute_advance(c, 3 * SECOND + 500 * MS);
	EQUAL((compute_use(c, c->gpus[0].history) + 5) / 10, 65);
	compute_advance(c, 4 * SECOND);
	EQUAL((compute_use(c, c->gpus[0].history) + 5) / 10, 100);
	EQUAL((compute_use(c, c->queues[a].history) + 5) / 10, 30);
	EQUAL((compute_use(c, c->queues[b].history) + 5) / 10, 70);
	compute_advance(c, 3600 * SECOND);
	EQUAL(compute_use(c, c->gpus[0].history), 0);
	EQUAL(c->marks, 3600 * SECOND / COMPUTE_PERIOD);
}

/* Everything that there is, on two cards. */
static void script(struct compute *c)
{
	unsigned a = process(c, 1, 0), b = process(c, 2, 0);
	unsigned far = process(c, 1, 1), dead = process(c, 3, 0);

	busy(c, a, 0, 5 * MS);
	meet(c, a, 0, MS, "k", 2, 1);
	busy(c, a, 0, MS);
	busy(c, b, MS, 9 * MS);
	meet(c, dead, 0, MS, "dead", 3, 1);
	meet(c, dead, 0, MS, "dead", 3, 2);
	meet(c, far, 30 * MS, MS, "k", 2, 1);
	submit(c, far, 30 * MS, (struct compute_entry){ .kind = COMPUTE_WAIT,
							.other = a, .after = 3 });
	busy(c, far, 30 * MS, MS);
	compute_advance(c, 40 * MS);
	compute_drop(c, dead);
	compute_advance(c, 300 * MS);
}

/* Runs the script to its end from wherever it stands. */
static void resume(struct compute *c)
{
	compute_repair(c);
	EQUAL(c->undo_count, 0);
	if (c->now < 40 * MS)
		compute_advance(c, 40 * MS);
	compute_drop(c, 3);
	compute_advance(c, 300 * MS);
}

static bool alike(const struct compute *a, const struct compute *b)
{
	return memcmp(a->queues, b->queues, sizeof(a->queues)) == 0 &&
	       memcmp(a->gpus, b->gpus, sizeof(a->gpus)) == 0 &&
	       memcmp(a->meets, b->meets, sizeof(a->meets)) == 0;
}

/* Whoever finds a state that was left half done, and repairs it and goes on,
 * comes to the same end. */
static void check_kill(void)
{
	struct compute *want = new_state(0), *c = new_state(0);
	long all, resumed = 0;

	steps = 0;
	script(want);
	all = steps;
	for (long n = 1; n <= all && failures == 0; n++) {
		memset(c, 0, offsetof(struct compute, rings[4]));
		start_state(c, 0);
		steps = 0;
		last_step = n;
		if (setjmp(dead) == 0) {
			script(c);
			printf("nobody died at step %ld of %ld\n", n, all);
			failures++;
		}
		last_step = 0;
		/* Until all is submitted there is nothing to compare. */
		if (c->queues[2].tail < 3)
			continue;
		resumed++;
		resume(c);
		EQUAL(alike(c, want), 1);
		if (failures != 0)
			printf("death at step %ld of %ld\n", n, all);
	}
	EQUAL(resumed > 400, 1);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{ "order", check_order },	{ "looking", check_looking },
		{ "slices", check_slices },	{ "turns", check_turns },
		{ "cards", check_cards },	{ "meetings", check_meetings },
		{ "death", check_death },	{ "forecast", check_forecast },
		{ "use", check_use },		{ "kill", check_kill },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc == 2 && strcmp(cases[i].name, argv[1]) == 0) {
			cases[i].run();
			return failures != 0;
		}
	}
	printf("no such case\n");
	return 2;
}
