/*
 * Kills processes in the middle of allocating.
 *
 *   storm <servers> <children> <kills> <seed>
 *
 * Each server starts so many children, which allocate and free at random, and
 * kills one after another at random moments; every dead one is replaced at once.
 * Beside them work survivors, one of each kind, which nobody kills. Prints
 *
 *   <kills> <kills inside a call> <refused> <odd> <survivors' rounds> <us>
 *
 * the last being the longest that any call of a survivor took.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "work.h"

#define CHILDREN_MAX 64
#define SERVERS_MAX 16

static struct {
	struct work survivors[WORK_KINDS];
	struct work victims[SERVERS_MAX][CHILDREN_MAX];
	unsigned long kills[SERVERS_MAX], inside[SERVERS_MAX];
	uint32_t stop;
} *shared;

static void nap(long ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

static bool stopped(void)
{
	return __atomic_load_n(&shared->stop, __ATOMIC_ACQUIRE);
}

/* pause: so that those who are just starting get a processor, and more are
 * killed in the same time. */
static void work(struct work *w, enum work_kind kind, unsigned seed, long pause)
{
	driver_init();
	__atomic_store_n(&w->begun, 1, __ATOMIC_RELEASE);
	while (!stopped()) {
		work_round(w, kind, &seed);
		if (pause)
			nap(pause);
	}
	work_finish(w, kind);
	_exit(0);
}

static pid_t start(struct work *w, enum work_kind kind, long pause)
{
	pid_t pid;

	__atomic_store_n(&w->begun, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&w->inside, 0, __ATOMIC_RELAXED);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		work(w, kind, (unsigned)getpid(), pause);
	}
	return pid;
}

/* Most are let into their work; the others die while they start. */
static void wait_for_moment(const struct work *w, pid_t pid, unsigned *seed)
{
	if (rand_r(seed) % 8 != 0)
		while (!__atomic_load_n(&w->begun, __ATOMIC_ACQUIRE)) {
			nap(50000);
			if (waitpid(pid, NULL, WNOHANG) != 0)
				_exit(3); /* it could not begin */
		}
	nap(rand_r(seed) % 300000);
}

static void serve(int me, unsigned children, unsigned long kills, unsigned seed)
{
	struct work *victims = shared->victims[me];
	pid_t pids[CHILDREN_MAX];

	for (unsigned i = 0; i < children; i++)
		pids[i] = start(&victims[i], i % WORK_KINDS, 0);
	for (unsigned long n = 0; n < kills; n++) {
		unsigned i = (unsigned)rand_r(&seed) % children;

		wait_for_moment(&victims[i], pids[i], &seed);
		if (kill(pids[i], SIGKILL) || waitpid(pids[i], NULL, 0) < 0)
			_exit(3);
		shared->kills[me]++;
		shared->inside[me] += victims[i].inside;
		pids[i] = start(&victims[i],
				(unsigned)rand_r(&seed) % WORK_KINDS, 0);
	}
	for (unsigned i = 0; i < children; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	_exit(0);
}

static int wait_all(const pid_t *pids, unsigned count)
{
	int bad = 0, status;

	for (unsigned i = 0; i < count; i++)
		bad |= waitpid(pids[i], &status, 0) < 0 || status != 0;
	return bad;
}

static void report(unsigned servers)
{
	unsigned long kills = 0, inside = 0, rounds = ~0ul;
	uint64_t longest = 0;
	struct work sum = { 0 };

	for (unsigned i = 0; i < servers; i++) {
		kills += shared->kills[i];
		inside += shared->inside[i];
	}
	for (unsigned i = 0; i < servers; i++)
		for (unsigned j = 0; j < CHILDREN_MAX; j++) {
			sum.refused += shared->victims[i][j].refused;
			sum.odd += shared->victims[i][j].odd;
		}
	for (unsigned i = 0; i < WORK_KINDS; i++) {
		const struct work *w = &shared->survivors[i];

		sum.refused += w->refused;
		sum.odd += w->odd;
		if (w->rounds < rounds)
			rounds = w->rounds;
		if (w->longest_ns > longest)
			longest = w->longest_ns;
	}
	printf("%lu %lu %lu %lu %lu %lu\n", kills, inside, sum.refused, sum.odd,
	       rounds, longest / 1000);
}

int main(int argc, char **argv)
{
	pid_t survivors[WORK_KINDS], servers[SERVERS_MAX] = { 0 };
	unsigned count, children, seed;
	unsigned long kills;
	int bad;

	if (argc != 5)
		return 3;
	count = (unsigned)atoi(argv[1]);
	children = (unsigned)atoi(argv[2]);
	kills = strtoul(argv[3], NULL, 10);
	seed = (unsigned)atoi(argv[4]);
	if (count > SERVERS_MAX || children > CHILDREN_MAX)
		return 3;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	driver_load();
	for (unsigned i = 0; i < WORK_KINDS; i++)
		survivors[i] = start(&shared->survivors[i], i, 500000);
	for (unsigned i = 0; i < count; i++) {
		servers[i] = fork();
		if (servers[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve((int)i, children, (kills + count - 1) / count,
			      seed + i);
		}
	}
	bad = wait_all(servers, count);
	__atomic_store_n(&shared->stop, 1, __ATOMIC_RELEASE);
	bad |= wait_all(survivors, WORK_KINDS);
	report(count);
	return bad;
}
