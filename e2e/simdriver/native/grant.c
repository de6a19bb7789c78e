/* What the ledger says of grants: who takes and gives, and how much that is. */
#include "ledger_state.h"
#include "process.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

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
	if (ledger_own.slot >= 0 &&
	    l->slots[ledger_own.slot].generation == ledger_own.generation)
		return true;
	ledger_reap(l);
	for (unsigned i = 0; i < LEDGER_SLOTS; i++) {
		struct ledger_slot *slot = &l->slots[i];
		if (slot->in_use || !ledger_set_lock(F_SETLK, F_WRLCK, ledger_slot_byte(i)))
			continue;
		LEDGER_STEP("join: locked");
		uint32_t group = find_group(l);
		l->groups[group].last_join = ++l->joins;
		LEDGER_STEP("join: has a group");
		memset(slot->used, 0, sizeof(slot->used));
		memset(slot->contexts, 0, sizeof(slot->contexts));
		slot->partition = ledger_own.partition;
		slot->pid = (uint32_t)getpid();
		slot->pid_namespace = process_namespace("/proc/self/ns/pid");
		slot->start_ticks = process_start_ticks();
		slot->group = group;
		process_command(slot->command);
		ledger_own.generation = ++slot->generation;
		ledger_own.slot = (int)i;
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
	if (!ledger_enter())
		return false;
	bool joined = join_locked(ledger_own.map);
	ledger_leave();
	return joined;
}

void ledger_choose(const struct ledger_partition *partition)
{
	ledger_own.partition = *partition;
}

enum ledger_begin ledger_begin(unsigned gpu, bool (*there)(unsigned gpu))
{
	enum ledger_begin result = LEDGER_FULL;

	if (!ledger_enter())
		return result;
	if (!there(gpu)) {
		result = LEDGER_NO_DEVICE;
	} else if (join_locked(ledger_own.map)) {
		ledger_own.map->slots[ledger_own.slot].contexts[gpu]++;
		result = LEDGER_BEGUN;
	}
	ledger_leave();
	return result;
}

/* A slot that was lost took its contexts with it. */
static bool has_slot(void)
{
	return ledger_own.slot >= 0 &&
	       ledger_own.map->slots[ledger_own.slot].generation ==
		       ledger_own.generation;
}

void ledger_end(unsigned gpu)
{
	if (!ledger_enter())
		return;
	if (has_slot())
		ledger_own.map->slots[ledger_own.slot].contexts[gpu]--;
	ledger_leave();
}

static bool is_used(unsigned gpu, uint64_t compute)
{
	uint32_t pid;

	for (unsigned i = 0; i < ledger_own.map->high; i++) {
		const struct ledger_slot *slot = &ledger_own.map->slots[i];
		if (slot->in_use && slot->contexts[gpu] != 0 &&
		    (compute == 0 || (slot->partition.gpu == gpu &&
				      slot->partition.compute == compute)) &&
		    ledger_slot_lives(i, &pid))
			return true;
	}
	return false;
}

bool ledger_unless_used(unsigned gpu, uint64_t compute,
			void (*change)(void *context), void *context)
{
	if (!ledger_enter())
		return false;
	bool used = is_used(gpu, compute);
	if (!used)
		change(context);
	ledger_leave();
	return !used;
}

static void count(struct ledger *l, unsigned gpu, uint64_t change)
{
	struct ledger_slot *slot = &l->slots[ledger_own.slot];
	struct ledger_count *card = &l->gpus[gpu];
	struct ledger_count *group = &l->groups[slot->group].gpus[gpu];

	ledger_set_dirty(l, 1);
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
	ledger_set_dirty(l, 0);
	LEDGER_STEP("count: done");
}

/* What counts against the capacity: of the card, or of the partition. */
static uint64_t taken(const struct ledger *l, unsigned gpu)
{
	uint64_t sum = 0;

	if (ledger_own.partition.instance == 0 || ledger_own.partition.gpu != gpu)
		return l->gpus[gpu].used;
	for (unsigned i = 0; i < l->high; i++)
		if (l->slots[i].in_use && l->slots[i].partition.instance ==
						  ledger_own.partition.instance)
			sum += l->slots[i].used[gpu];
	return sum;
}

bool ledger_take(unsigned gpu, uint64_t bytes, uint64_t capacity)
{
	bool granted = false;

	if (!ledger_enter())
		return false;
	struct ledger *l = ledger_own.map;
	if (join_locked(l) && bytes <= capacity) {
		struct ledger_slot *slot = &l->slots[ledger_own.slot];
		struct ledger_count *card = &l->gpus[gpu];
		struct ledger_count *group = &l->groups[slot->group].gpus[gpu];
		/* The memory of the dead must neither refuse a grant nor
		 * raise a peak, so they are looked for before either. */
		if (taken(l, gpu) + bytes > capacity ||
		    card->used + bytes > card->peak ||
		    group->used + bytes > group->peak)
			ledger_reap(l);
		granted = taken(l, gpu) + bytes <= capacity;
		if (granted)
			count(l, gpu, bytes);
	}
	ledger_leave();
	return granted;
}

void ledger_give(unsigned gpu, uint64_t bytes)
{
	if (!ledger_enter())
		return;
	if (has_slot())
		count(ledger_own.map, gpu, -bytes);
	ledger_leave();
}

/* instance 0: of the whole card. */
uint64_t ledger_used_in(unsigned gpu, uint64_t instance)
{
	uint64_t used = 0;
	uint32_t pid;

	if (ledger_own.map == NULL)
		return 0;
	for (unsigned i = 0; i < ledger_own.map->high; i++) {
		const struct ledger_slot *slot = &ledger_own.map->slots[i];
		uint64_t held = *(volatile const uint64_t *)&slot->used[gpu];
		if (held != 0 && slot->in_use &&
		    (instance == 0 || slot->partition.instance == instance) &&
		    ledger_slot_lives(i, &pid))
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

	for (unsigned i = 0; ledger_own.map != NULL && i < ledger_own.map->high; i++) {
		struct ledger_slot copy = ledger_own.map->slots[i];
		if (copy.in_use && ledger_slot_lives(i, &pid))
			visit(context, &copy, pid == 0 ? copy.pid : pid);
	}
}

bool ledger_self(unsigned *slot, uint32_t *generation)
{
	*slot = (unsigned)ledger_own.slot;
	*generation = ledger_own.generation;
	return ledger_own.slot >= 0;
}

bool ledger_lives(unsigned slot, uint32_t generation, uint32_t *pid)
{
	if (ledger_own.map == NULL || slot >= LEDGER_SLOTS)
		return false;
	struct ledger_slot copy = ledger_own.map->slots[slot];
	if (!copy.in_use || copy.generation != generation ||
	    !ledger_slot_lives(slot, pid))
		return false;
	if (*pid == 0)
		*pid = copy.pid;
	return true;
}
