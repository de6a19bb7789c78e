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

int main(int argc, char **argv)
{
	must(argc == 3, "usage: ledger_check ROOT STEP");
	root = argv[1];
	last_step = argv[2];
	must(in_child(leave_behind) == 0, "the first process failed");
	/* This process lives on and holds 3 blocks; its record locks are not
	 * the children's, who open the file anew. */
	int ready[2], end[2];
	must(pipe(ready) == 0 && pipe(end) == 0, "pipe");
	pid_t living = fork();
	if (living == 0) {
		char c = 0;
		close(end[1]);
		must(ledger_open(root) && ledger_join(), "join");
		must(ledger_take(0, 3 * SIM_BLOCK, CAPACITY), "take");
		must(write(ready[1], &c, 1) == 1, "tell");
		must(read(end[0], &c, 1) == 0, "wait");
		_exit(0);
	}
	char c;
	must(read(ready[0], &c, 1) == 1, "the living did not start");
	/* Something dead to reap, for the steps of reaping. */
	must(in_child(leave_behind) == 0, "the second process failed");
	int status = in_child(die);
	must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
	     "nobody died at that step");
	must(in_child(check) == 0, "the check failed");
	close(end[1]);
	must(waitpid(living, &status, 0) == living && status == 0,
	     "the living failed");
	return 0;
}
