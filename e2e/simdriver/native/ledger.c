#include "ledger.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where a test may let the process die. */
#ifndef LEDGER_STEP
#define LEDGER_STEP(step) ((void)0)
#endif

static struct {
	pthread_mutex_t mutex; /* record locks do not tell threads apart */
	struct ledger *map;
	int fd;
	bool writable;
	int slot; /* -1 until joined */
	uint32_t generation;
	struct ledger_partition partition;
} self = { .mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .slot = -1 };

static bool set_lock(int command, short type, uint64_t byte)
{
	struct flock lock = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)byte,
		.l_len = 1,
	};
	int rc;

	do
		rc = fcntl(self.fd, command, &lock);
	while (rc < 0 && errno == EINTR);
	return rc == 0;
}

static uint64_t slot_byte(unsigned slot)
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

/* Whether the slot's owner lives, and the pid by which we know it (0: its pid
 * namespace is not below ours, or it is this process). */
static bool slot_lives(unsigned index, uint32_t *pid)
{
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)slot_byte(index),
		.l_len = 1,
	};

	*pid = 0;
	if ((int)index == self.slot || slot_is_own(&self.map->slots[index]))
		return true;
	if (fcntl(self.fd, F_GETLK, &lock) < 0)
		return true; /* when in doubt nothing is taken away */
	if (lock.l_type == F_UNLCK)
		return false;
	*pid = lock.l_pid > 0 ? (uint32_t)lock.l_pid : 0;
	return true;
}

static void set_dirty(struct ledger *l, uint32_t dirty)
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

static void reap(struct ledger *l)
{
	uint32_t pid;

	for (unsigned i = 0; i < l->high; i++) {
		struct ledger_slot *slot = &l->slots[i];
		if (!slot->in_use || slot_lives(i, &pid))
			continue;
		set_dirty(l, 1);
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
		set_dirty(l, 0);
	}
}

/* Takes the region. What a killed process left half done is repaired first. */
static bool enter(void)
{
	pthread_mutex_lock(&self.mutex);
	if (!self.writable ||
	    !set_lock(F_SETLKW, F_WRLCK, LEDGER_LOCK_BASE)) {
		pthread_mutex_unlock(&self.mutex);
		return false;
	}
	if (self.map->dirty)
		reap(self.map);
	return true;
}

static void leave(void)
{
	set_lock(F_SETLK, F_UNLCK, LEDGER_LOCK_BASE);
	pthread_mutex_unlock(&self.mutex);
}

static uint32_t find_group(struct ledger *l)
{
	uint64_t ns = process_namespace("/proc/self/ns/mnt");
	char hostname[65] = "";
	uint32_t found = 0;

	gethostname(hostname, sizeof(hostname) - 1);
	for (uint32_t i = 0; i < l->group_high; i++)
		if (l->groups[i].mount_namespace == ns &&
		    strcmp(l->groups[i].hostname, hostname) == 0)
			return i;
	if (l->group_high < LEDGER_GROUPS) {
		found = l->group_high++;
	} else { /* the one that was joined longest ago and holds nothing */
		for (uint32_t i = 0; i < LEDGER_GROUPS; i++) {
			bool busy = false;
			for (unsigned g = 0; g < SIM_MAX_GPUS; g++)
				busy |= l->groups[i].gpus[g].used != 0;
			if (!busy && l->groups[i].last_join <
					     l->groups[found].last_join)
				found = i;
		}
	}
	struct ledger_group *group = &l->groups[found];
	memset(group, 0, sizeof(*group));
	group->mount_namespace = ns;
	strcpy(group->hostname, hostname);
	return found;
}

static bool join_locked(struct ledger *l)
{
	if (self.slot >= 0 &&
	    l->slots[self.slot].generation == self.generation)
		return true;
	reap(l);
	for (unsigned i = 0; i < LEDGER_SLOTS; i++) {
		struct ledger_slot *slot = &l->slots[i];
		if (slot->in_use || !set_lock(F_SETLK, F_WRLCK, slot_byte(i)))
			continue;
		LEDGER_STEP("join: locked");
		uint32_t group = find_group(l);
		l->groups[group].last_join = ++l->joins;
		LEDGER_STEP("join: has a group");
		memset(slot->used, 0, sizeof(slot->used));
		memset(slot->contexts, 0, sizeof(slot->contexts));
		slot->partition = self.partition;
		slot->pid = (uint32_t)getpid();
		slot->pid_namespace = process_namespace("/proc/self/ns/pid");
		slot->start_ticks = process_start_ticks();
		slot->group = group;
		process_command(slot->command);
		self.generation = ++slot->generation;
		self.slot = (int)i;
		/* Before the slot is in use, so that nobody overlooks it. */
		if (l->high <= i)
			l->high = i + 1;
		atomic_thread_fence(memory_order_seq_cst);
		LEDGER_STEP("join: filled in");
		slot->in_use = 1;
		LEDGER_STEP("join: in use");
		return true;
	}
	return false;
}

bool ledger_join(void)
{
	if (!enter())
		return false;
	bool joined = join_locked(self.map);
	leave();
	return joined;
}

void ledger_choose(const struct ledger_partition *partition)
{
	self.partition = *partition;
}

enum ledger_begin ledger_begin(unsigned gpu, bool (*there)(unsigned gpu))
{
	enum ledger_begin result = LEDGER_FULL;

	if (!enter())
		return result;
	if (!there(gpu)) {
		result = LEDGER_NO_DEVICE;
	} else if (join_locked(self.map)) {
		self.map->slots[self.slot].contexts[gpu]++;
		result = LEDGER_BEGUN;
	}
	leave();
	return result;
}

/* A slot that was lost took its contexts with it. */
static bool has_slot(void)
{
	return self.slot >= 0 &&
	       self.map->slots[self.slot].generation == self.generation;
}

void ledger_end(unsigned gpu)
{
	if (!enter())
		return;
	if (has_slot())
		self.map->slots[self.slot].contexts[gpu]--;
	leave();
}

static bool is_used(unsigned gpu, uint64_t compute)
{
	uint32_t pid;

	for (unsigned i = 0; i < self.map->high; i++) {
		const struct ledger_slot *slot = &self.map->slots[i];
		if (slot->in_use && slot->contexts[gpu] != 0 &&
		    (compute == 0 || (slot->partition.gpu == gpu &&
				      slot->partition.compute == compute)) &&
		    slot_lives(i, &pid))
			return true;
	}
	return false;
}

bool ledger_unless_used(unsigned gpu, uint64_t compute,
			void (*change)(void *context), void *context)
{
	if (!enter())
		return false;
	bool used = is_used(gpu, compute);
	if (!used)
		change(context);
	leave();
	return !used;
}

static void count(struct ledger *l, unsigned gpu, uint64_t change)
{
	struct ledger_slot *slot = &l->slots[self.slot];
	struct ledger_count *card = &l->gpus[gpu];
	struct ledger_count *group = &l->groups[slot->group].gpus[gpu];

	set_dirty(l, 1);
	LEDGER_STEP("count: marked");
	slot->used[gpu] += change;
	LEDGER_STEP("count: slot");
	card->used += change;
	LEDGER_STEP("count: card");
	group->used += change;
	LEDGER_STEP("count: group");
	if (card->used > card->peak)
		card->peak = card->used;
	if (group->used > group->peak)
		group->peak = group->used;
	LEDGER_STEP("count: peaks");
	set_dirty(l, 0);
	LEDGER_STEP("count: done");
}

/* What counts against the capacity: of the card, or of the partition. */
static uint64_t taken(const struct ledger *l, unsigned gpu)
{
	uint64_t sum = 0;

	if (self.partition.instance == 0 || self.partition.gpu != gpu)
		return l->gpus[gpu].used;
	for (unsigned i = 0; i < l->high; i++)
		if (l->slots[i].in_use && l->slots[i].partition.instance ==
						  self.partition.instance)
			sum += l->slots[i].used[gpu];
	return sum;
}

bool ledger_take(unsigned gpu, uint64_t bytes, uint64_t capacity)
{
	bool granted = false;

	if (!enter())
		return false;
	struct ledger *l = self.map;
	if (join_locked(l) && bytes <= capacity) {
		struct ledger_slot *slot = &l->slots[self.slot];
		struct ledger_count *card = &l->gpus[gpu];
		struct ledger_count *group = &l->groups[slot->group].gpus[gpu];
		/* The memory of the dead must neither refuse a grant nor
		 * raise a peak, so they are looked for before either. */
		if (taken(l, gpu) + bytes > capacity ||
		    card->used + bytes > card->peak ||
		    group->used + bytes > group->peak)
			reap(l);
		granted = taken(l, gpu) + bytes <= capacity;
		if (granted)
			count(l, gpu, bytes);
	}
	leave();
	return granted;
}

void ledger_give(unsigned gpu, uint64_t bytes)
{
	if (!enter())
		return;
	if (has_slot())
		count(self.map, gpu, -bytes);
	leave();
}

/* instance 0: of the whole card. */
uint64_t ledger_used_in(unsigned gpu, uint64_t instance)
{
	uint64_t used = 0;
	uint32_t pid;

	if (self.map == NULL)
		return 0;
	for (unsigned i = 0; i < self.map->high; i++) {
		const struct ledger_slot *slot = &self.map->slots[i];
		uint64_t held = *(volatile const uint64_t *)&slot->used[gpu];
		if (held != 0 && slot->in_use &&
		    (instance == 0 || slot->partition.instance == instance) &&
		    slot_lives(i, &pid))
			used += held;
	}
	return used;
}

uint64_t ledger_used(unsigned gpu)
{
	return ledger_used_in(gpu, 0);
}

void ledger_each(ledger_visit *visit, void *context)
{
	uint32_t pid;

	for (unsigned i = 0; self.map != NULL && i < self.map->high; i++) {
		struct ledger_slot copy = self.map->slots[i];
		if (copy.in_use && slot_lives(i, &pid))
			visit(context, &copy, pid == 0 ? copy.pid : pid);
	}
}

bool ledger_self(unsigned *slot, uint32_t *generation)
{
	*slot = (unsigned)self.slot;
	*generation = self.generation;
	return self.slot >= 0;
}

bool ledger_lives(unsigned slot, uint32_t generation, uint32_t *pid)
{
	if (self.map == NULL || slot >= LEDGER_SLOTS)
		return false;
	struct ledger_slot copy = self.map->slots[slot];
	if (!copy.in_use || copy.generation != generation ||
	    !slot_lives(slot, pid))
		return false;
	if (*pid == 0)
		*pid = copy.pid;
	return true;
}

void ledger_forked(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	self.mutex = fresh;
	self.slot = -1;
}

/* The file begins empty; whoever comes first gives it its shape. The header is
 * written last, so a file without one is begun again. */
static bool initialise(void)
{
	uint32_t head[3] = { 0 };
	bool good = true;

	if (!set_lock(F_SETLKW, F_WRLCK, LEDGER_LOCK_BASE))
		return false;
	if (pread(self.fd, head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    head[0] == 0) {
		head[0] = LEDGER_MAGIC;
		head[1] = LEDGER_VERSION;
		head[2] = sizeof(struct ledger);
		good = ftruncate(self.fd, sizeof(struct ledger)) == 0 &&
		       pwrite(self.fd, head, sizeof(head), 0) ==
			       (ssize_t)sizeof(head);
	}
	set_lock(F_SETLK, F_UNLCK, LEDGER_LOCK_BASE);
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
	int protection = PROT_READ | (self.writable ? PROT_WRITE : 0);
	void *at = mmap(NULL, sizeof(struct ledger), protection, MAP_SHARED,
			self.fd, 0);

	if (at == MAP_FAILED)
		return false;
	struct ledger *l = at;
	if (l->magic != LEDGER_MAGIC || l->version != LEDGER_VERSION ||
	    l->size != sizeof(*l)) {
		munmap(at, sizeof(*l));
		return false;
	}
	self.map = l;
	return true;
}

static bool open_locked(const char *root)
{
	struct stat st;

	if (self.map != NULL)
		return true;
	if (self.fd < 0)
		self.fd = open_file(root, &self.writable);
	if (self.fd < 0)
		return false;
	if (self.writable)
		return initialise() && map_file();
	/* Nobody has used the cards yet: there is nothing to read, now. */
	if (fstat(self.fd, &st) == 0 && st.st_size == 0)
		return true;
	return map_file();
}

bool ledger_open(const char *root)
{
	pthread_mutex_lock(&self.mutex);
	bool opened = open_locked(root);
	pthread_mutex_unlock(&self.mutex);
	return opened;
}

const struct ledger *ledger_lock(void)
{
	if (!enter())
		return NULL;
	reap(self.map);
	return self.map;
}

void ledger_unlock(void)
{
	leave();
}
