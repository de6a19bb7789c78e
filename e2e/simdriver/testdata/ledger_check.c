/*
 * ledger_check ROOT STEP: lets a process die at one step of the ledger, beside
 * one that lives, and checks that the next one finds the accounts in order.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *die_at;

static void step(const char *name)
{
	if (die_at != NULL && strcmp(name, die_at) == 0)
		kill(getpid(), SIGKILL);
}
#define LEDGER_STEP(name) step(name)

#include "../native/ledger.c"
#include "../native/grant.c"

#include <sys/wait.h>

#define CAPACITY (100 * SIM_BLOCK)

static const char *root, *last_step;

static void must(bool condition, const char *what)
{
	if (condition)
		return;
	printf("%s\n", what);
	fflush(stdout);
	_exit(1);
}

/* Runs in a process of its own, since a ledger belongs to one process. */
static int in_child(void (*run)(void))
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		run();
		_exit(0);
	}
	waitpid(child, &status, 0);
	return status;
}

static void leave_behind(void)
{
	must(ledger_open(root) && ledger_take(0, 5 * SIM_BLOCK, CAPACITY),
	     "the first process got nothing");
}

/* Joins, reaps what the one before left, takes and gives. */
static void die(void)
{
	die_at = last_step;
	if (ledger_open(root) && ledger_take(0, 7 * SIM_BLOCK, CAPACITY))
		ledger_give(0, SIM_BLOCK);
}

static void check(void)
{
	must(ledger_open(root), "the ledger cannot be opened");
	const struct ledger *l = ledger_lock();
	must(l != NULL, "the ledger cannot be locked");
	must(l->dirty == 0, "the ledger is dirty");
	must(l->gpus[0].used == 3 * SIM_BLOCK,
	     "the card has not just what the living holds");
	for (unsigned i = 0; i < l->group_high; i++)
		must(l->groups[i].gpus[0].used == 0 ||
			     l->groups[i].gpus[0].used == 3 * SIM_BLOCK,
		     "a container has not just what the living holds");
	must(l->gpus[0].peak <= CAPACITY, "the peak is beyond the card");
	ledger_unlock();
	must(ledger_take(0, CAPACITY - 3 * SIM_BLOCK, CAPACITY),
	     "the rest of the card is not to be had");
}

/* The slots are the truth; the totals must say the same after every entry. */
static void must_agree(void)
{
	const struct ledger *l = ledger_own.map;
	uint64_t slots = 0, groups = 0;

	for (unsigned i = 0; i < l->high; i++)
		if (l->slots[i].in_use)
			slots += l->slots[i].used[0];
	for (unsigned i = 0; i < l->group_high; i++)
		groups += l->groups[i].gpus[0].used;
	must(l->gpus[0].used == slots, "the card does not agree with the slots");
	must(groups == slots, "the containers do not agree with the slots");
}

/* Holds 3 blocks all along. Told to, it takes and gives one more. */
static void live(int told, int tell)
{
	char c = 0;

	must(ledger_open(root) && ledger_take(0, 3 * SIM_BLOCK, CAPACITY),
	     "the living got nothing");
	must(write(tell, &c, 1) == 1, "tell");
	while (read(told, &c, 1) == 1) {
		must(ledger_take(0, SIM_BLOCK, CAPACITY), "one block more");
		must_agree();
		ledger_give(0, SIM_BLOCK);
		must_agree();
		must(write(tell, &c, 1) == 1, "tell");
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	int told[2], tell[2], status;
	char c = 0;

	must(argc == 3, "usage: ledger_check ROOT STEP");
	root = argv[1];
	last_step = argv[2];
	must(pipe(told) == 0 && pipe(tell) == 0, "pipe");
	pid_t living = fork();
	if (living == 0) {
		close(told[1]);
		live(told[0], tell[1]);
	}
	close(tell[1]);
	must(read(tell[0], &c, 1) == 1, "the living did not start");
	/* Something dead to reap, for the steps of reaping. */
	must(in_child(leave_behind) == 0, "nothing left behind");
	status = in_child(die);
	must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
	     "nobody died at that step");
	must(write(told[1], &c, 1) == 1 && read(tell[0], &c, 1) == 1,
	     "the living found no order");
	must(in_child(check) == 0, "the check failed");
	close(told[1]);
	must(waitpid(living, &status, 0) == living && status == 0,
	     "the living failed");
	return 0;
}
