/* The ledger's file: who may change it, and who lives of those who have. */
#include "ledger_state.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct ledger_process ledger_own = {
	.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .slot = -1
};

bool ledger_set_lock(int command, short type, uint64_t byte)
{
	struct flock lock = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)byte,
		.l_len = 1,
	};
	int rc;

	do
		rc = fcntl(ledger_own.fd, command, &lock);
	while (rc < 0 && errno == EINTR);
	return rc == 0;
}

uint64_t ledger_slot_byte(unsigned slot)
{
	return LEDGER_LOCK_BASE + 1 + slot;
}

/* A process does not conflict with its own locks, and its other library may
 * be the one that joined. */
static bool slot_is_own(const struct ledger_slot *slot)
{
	static _Atomic uint64_t own_namespace;
	uint64_t ns = atomic_load_explicit(&own_namespace, memory_order_relaxed);

	if (slot->pid != (uint32_t)getpid())
		return false;
	if (ns == 0) {
		ns = process_namespace("/proc/self/ns/pid");
		atomic_store_explicit(&own_namespace, ns, memory_order_relaxed);
	}
	return slot->pid_namespace == ns &&
	       slot->start_ticks == process_start_ticks();
}

bool ledger_slot_lives(unsigned index, uint32_t *pid)
{
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)ledger_slot_byte(index),
		.l_len = 1,
	};

	*pid = 0;
	if ((int)index == ledger_own.slot ||
	    slot_is_own(&ledger_own.map->slots[index]))
		return true;
	if (fcntl(ledger_own.fd, F_GETLK, &lock) < 0)
		return true; /* when in doubt nothing is taken away */
	if (lock.l_type == F_UNLCK)
		return false;
	*pid = lock.l_pid > 0 ? (uint32_t)lock.l_pid : 0;
	return true;
}

void ledger_set_dirty(struct ledger *l, uint32_t dirty)
{
	atomic_thread_fence(memory_order_seq_cst);
	*(volatile uint32_t *)&l->dirty = dirty;
	atomic_thread_fence(memory_order_seq_cst);
}

static void recompute(struct ledger *l)
{
	for (unsigned g = 0; g < SIM_MAX_GPUS; g++) {
		l->gpus[g].used = 0;
		for (unsigned i = 0; i < l->group_high; i++)
			l->groups[i].gpus[g].used = 0;
	}
	for (unsigned i = 0; i < l->high; i++) {
		struct ledger_slot *slot = &l->slots[i];
		if (!slot->in_use)
			continue;
		for (unsigned g = 0; g < SIM_MAX_GPUS; g++) {
			l->gpus[g].used += slot->used[g];
			l->groups[slot->group].gpus[g].used += slot->used[g];
		}
	}
}

void ledger_reap(struct ledger *l)
{
	uint32_t pid;

	for (unsigned i = 0; i < l->high; i++) {
		struct ledger_slot *slot = &l->slots[i];
		if (!slot->in_use || ledger_slot_lives(i, &pid))
			continue;
		ledger_set_dirty(l, 1);
		LEDGER_STEP("reap: marked");
		slot->generation++;
		slot->in_use = 0;
		LEDGER_STEP("reap: not in use");
		memset(slot->used, 0, sizeof(slot->used));
	}
	if (l->dirty) {
		LEDGER_STEP("reap: before the totals");
		recompute(l);
		LEDGER_STEP("reap: after the totals");
		ledger_set_dirty(l, 0);
	}
}

bool ledger_enter(void)
{
	pthread_mutex_lock(&ledger_own.mutex);
	if (!ledger_own.writable ||
	    !ledger_set_lock(F_SETLKW, F_WRLCK, LEDGER_LOCK_BASE)) {
		pthread_mutex_unlock(&ledger_own.mutex);
		return false;
	}
	if (ledger_own.map->dirty)
		ledger_reap(ledger_own.map);
	return true;
}

void ledger_leave(void)
{
	ledger_set_lock(F_SETLK, F_UNLCK, LEDGER_LOCK_BASE);
	pthread_mutex_unlock(&ledger_own.mutex);
}

void ledger_forked(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	ledger_own.mutex = fresh;
	ledger_own.slot = -1;
}

/* The file begins empty; whoever comes first gives it its shape. The header is
 * written last, so a file without one is begun again. */
static bool initialise(void)
{
	uint32_t head[3] = { 0 };
	bool good = true;

	if (!ledger_set_lock(F_SETLKW, F_WRLCK, LEDGER_LOCK_BASE))
		return false;
	if (pread(ledger_own.fd, head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    head[0] == 0) {
		head[0] = LEDGER_MAGIC;
		head[1] = LEDGER_VERSION;
		head[2] = sizeof(struct ledger);
		good = ftruncate(ledger_own.fd, sizeof(struct ledger)) == 0 &&
		       pwrite(ledger_own.fd, head, sizeof(head), 0) ==
			       (ssize_t)sizeof(head);
	}
	ledger_set_lock(F_SETLK, F_UNLCK, LEDGER_LOCK_BASE);
	return good;
}

static int open_file(const char *root, bool *writable)
{
	int fd = sim_state_open(root, "ledger", writable);

	if (fd >= 0 && fd < 3) { /* keep out of the way of standard streams */
		int low = fd;
		fd = fcntl(low, F_DUPFD_CLOEXEC, 3);
		close(low); /* no lock is held yet */
	}
	return fd;
}

static bool map_file(void)
{
	int protection = PROT_READ | (ledger_own.writable ? PROT_WRITE : 0);
	void *at = mmap(NULL, sizeof(struct ledger), protection, MAP_SHARED,
			ledger_own.fd, 0);

	if (at == MAP_FAILED)
		return false;
	struct ledger *l = at;
	if (l->magic != LEDGER_MAGIC || l->version != LEDGER_VERSION ||
	    l->size != sizeof(*l)) {
		munmap(at, sizeof(*l));
		return false;
	}
	ledger_own.map = l;
	return true;
}

static bool open_locked(const char *root)
{
	struct stat st;

	if (ledger_own.map != NULL)
		return true;
	if (ledger_own.fd < 0)
		ledger_own.fd = open_file(root, &ledger_own.writable);
	if (ledger_own.fd < 0)
		return false;
	if (ledger_own.writable)
		return initialise() && map_file();
	/* Nobody has used the cards yet: there is nothing to read, now. */
	if (fstat(ledger_own.fd, &st) == 0 && st.st_size == 0)
		return true;
	return map_file();
}

bool ledger_open(const char *root)
{
	pthread_mutex_lock(&ledger_own.mutex);
	bool opened = open_locked(root);
	pthread_mutex_unlock(&ledger_own.mutex);
	return opened;
}

const struct ledger *ledger_lock(void)
{
	if (!ledger_enter())
		return NULL;
	ledger_reap(ledger_own.map);
	return ledger_own.map;
}

void ledger_unlock(void)
{
	ledger_leave();
}
