/* The state of the cards in its file: the clock, the lock, and the dead. */
#include "compute_step.h"
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHECK_INTERVAL UINT64_C(1000000) /* between looks for the dead */

static struct compute *map;

static uint64_t clock_of(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

uint64_t compute_clock(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

void compute_sleep(uint64_t until)
{
	struct timespec ts = {
		.tv_sec = (time_t)(until / 1000000000),
		.tv_nsec = (long)(until % 1000000000),
	};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

uint64_t compute_self(void)
{
	unsigned slot;
	uint32_t generation;

	return ledger_self(&slot, &generation) ?
		       compute_owner(slot, generation) :
		       0;
}

static bool lives(uint64_t owner)
{
	uint32_t pid;

	return ledger_lives((unsigned)(owner >> 32) - 1, (uint32_t)owner, &pid);
}

/* Whoever comes first gives the empty file its shape; to do so twice at once
 * does no harm but to the epoch, which then is as good as the other. */
static bool initialise(int fd, const struct sim_hardware *hardware)
{
	struct stat st;

	if (fstat(fd, &st) != 0 ||
	    (st.st_size < (off_t)sizeof(struct compute) &&
	     ftruncate(fd, sizeof(struct compute)) != 0))
		return false;
	struct compute *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE,
				 MAP_SHARED, fd, 0);
	if (c == MAP_FAILED)
		return false;
	if (c->magic == 0) {
		for (unsigned g = 0; g < hardware->gpu_count; g++)
			c->gpus[g].slice = hardware->gpus[g].slice_ns;
		c->epoch = clock_of(CLOCK_REALTIME) - compute_clock();
		c->version = COMPUTE_VERSION;
		c->size = (uint32_t)sizeof(*c);
		atomic_thread_fence(memory_order_seq_cst);
		*(volatile uint32_t *)&c->magic = COMPUTE_MAGIC;
	}
	map = c;
	return true;
}

static bool usable(const struct compute *c)
{
	return c->magic == COMPUTE_MAGIC && c->version == COMPUTE_VERSION &&
	       c->size == (uint32_t)sizeof(*c);
}

bool compute_open(const char *root, const struct sim_hardware *hardware)
{
	char path[SIM_PATH_MAX];

	if (map != NULL)
		return usable(map);
	if (!sim_path(path, root, "run/nvidia-sim/compute"))
		return false;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool opened = initialise(fd, hardware);
	close(fd);
	return opened && usable(map);
}

/* A holder that was killed is found by the ledger. To wait here is not to wait
 * for a card, so it must not let a simulated clock go on. */
static void take(struct compute *c)
{
	uint64_t self = compute_self(), holder = 0;

	for (unsigned tries = 1;; tries++) {
		holder = 0;
		if (atomic_compare_exchange_strong(&c->holder, &holder, self))
			break;
		if (tries % 64 == 0 && !lives(holder) &&
		    atomic_compare_exchange_strong(&c->holder, &holder, self))
			break;
		sched_yield();
	}
	uint64_t sequence = atomic_load(&c->sequence);
	atomic_store(&c->sequence, sequence + 1 + (sequence & 1));
	compute_repair(c);
}

static void drop_dead(struct compute *c)
{
	for (unsigned i = 0; i < c->high; i++)
		if (c->queues[i].owner != 0 && !lives(c->queues[i].owner))
			compute_drop(c, i);
}

struct compute *compute_lock(void)
{
	/* The clock is asked before: one that is simulated lets others run
	 * meanwhile, who may want the lock. */
	uint64_t now = compute_clock();
	take(map);
	if (now > map->checked + CHECK_INTERVAL || now < map->checked) {
		drop_dead(map);
		*(volatile uint64_t *)&map->checked = now;
	}
	compute_advance(map, now);
	return map;
}

void compute_unlock(void)
{
	atomic_fetch_add(&map->sequence, 1);
	atomic_store(&map->holder, 0);
}

static const struct compute *map_to_read(const char *root)
{
	static const struct compute *reading;
	char path[SIM_PATH_MAX];
	struct stat st;

	if (reading != NULL ||
	    !sim_path(path, root, "run/nvidia-sim/compute"))
		return reading;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && st.st_size == sizeof(*reading)) {
		void *at = mmap(NULL, sizeof(*reading), PROT_READ, MAP_SHARED,
				fd, 0);
		if (at != MAP_FAILED)
			reading = at;
	}
	close(fd);
	return reading;
}

/* What is outstanding, and nothing else of the rings. */
static void copy_state(struct compute *to, const struct compute *from)
{
	memcpy(to, from, offsetof(struct compute, queues));
	memcpy(to->queues, from->queues, to->high * sizeof(to->queues[0]));
	for (unsigned q = 0; q < to->high; q++) {
		uint64_t tail = to->queues[q].tail;
		for (uint64_t i = to->queues[q].done;
		     i < tail && to->queues[q].owner != 0; i++)
			*compute_entry(to, q, i) =
				from->rings[q][i % COMPUTE_RING];
	}
}

struct compute *compute_copy(const char *root)
{
	const struct compute *from = map_to_read(root);

	if (from == NULL || !usable(from))
		return NULL;
	struct compute *copy = mmap(NULL, sizeof(*copy),
				    PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
				    -1, 0);
	if (copy == MAP_FAILED)
		return NULL;
	for (unsigned tries = 1;; tries++) {
		uint64_t sequence = atomic_load(&from->sequence);
		uint64_t holder = atomic_load(&from->holder);
		if (sequence % 2 == 0 || (tries % 64 == 0 && !lives(holder))) {
			copy_state(copy, from);
			atomic_thread_fence(memory_order_seq_cst);
			if (atomic_load(&from->sequence) == sequence)
				break;
		}
		sched_yield();
	}
	compute_repair(copy);
	drop_dead(copy);
	compute_advance(copy, compute_clock());
	return copy;
}

void compute_drop_copy(struct compute *copy)
{
	munmap(copy, sizeof(*copy));
}
