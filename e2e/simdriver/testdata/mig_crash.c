/*
 * mig_crash ROOT: lets a process die at each step of dividing a card and putting it
 * together again, and checks after each death that what is there is whole, that
 * nobody waits for the dead, and that the next one can go on.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned steps, last_step; /* 0: none is the last */

static void step(void)
{
	if (++steps == last_step)
		kill(getpid(), SIGKILL);
}
#define MIG_STEP(name) step()

#include "../native/mig_change.c"

static const char *root;
static struct sim_hardware hw;

static void must(bool condition, const char *what)
{
	if (condition)
		return;
	printf("step %u: %s\n", last_step, what);
	fflush(stdout);
	_exit(1);
}

/* What those that die make, and what the others do: in the same places of the file
 * other instances, so that nothing looks whole for what was there before. */
struct division {
	unsigned half, half_index; /* a profile's ID and index */
	int half_start;
	unsigned eighth, eighth_index;
	int eighth_start;
	unsigned compute; /* of all of the half */
};

static const struct division dying = { 9, 2, 4, 19, 0, 0, 2 };
static const struct division living = { 5, 3, 0, 20, 7, 6, 3 };

/* From whatever is there to a card that is whole and not in MIG mode. */
static void divide(const struct division *d)
{
	const struct sim_gpu *gpu = &hw.gpus[0];
	struct mig_made half, one, compute;
	int activation;

	must(mig_open(root) && ledger_open(root), "open");
	must(mig_set_mode(gpu, 0, 1, &activation) == MIG_OK, "enable");
	must(mig_reset(0) == MIG_OK, "reset");
	must(mig_create(gpu, 0, d->half, d->half_start, &half) == MIG_OK,
	     "half");
	must(mig_create(gpu, 0, d->eighth, d->eighth_start, &one) == MIG_OK,
	     "1g");
	must(mig_create_compute(gpu, 0, half.number, half.serial,
				d->compute, MIG_ANYWHERE, &compute) == MIG_OK,
	     "compute instance");
	must(mig_destroy(0, half.number, half.serial) == MIG_IN_USE,
	     "an instance in use");
	must(mig_destroy_compute(0, half.number, compute.number,
				 compute.serial) == MIG_OK,
	     "destroy a compute instance");
	must(mig_create_compute(gpu, 0, half.number, half.serial,
				d->compute, MIG_ANYWHERE, &compute) == MIG_OK,
	     "another compute instance");
	must(mig_destroy(0, one.number, one.serial) == MIG_OK, "destroy 1g");
	must(mig_reset(0) == MIG_OK, "reset of a divided card");
	must(mig_set_mode(gpu, 0, 0, &activation) == MIG_OK, "disable");
}

static bool is_of_one(const struct mig_instance *instance)
{
	const struct division *both[] = { &dying, &living };

	for (unsigned i = 0; i < 2; i++)
		if ((instance->profile == both[i]->half_index &&
		     (int)instance->start == both[i]->half_start) ||
		    (instance->profile == both[i]->eighth_index &&
		     (int)instance->start == both[i]->eighth_start))
			return true;
	return false;
}

static void check_whole(void)
{
	struct mig_card card;

	must(mig_open(root), "open to check");
	must(mig_lock() != NULL, "lock");
	mig_unlock();
	mig_read(0, &card);
	for (unsigned i = 0; i < MIG_INSTANCES; i++) {
		struct mig_instance *instance = &card.instances[i];
		const struct sim_mig_profile *profile =
			mig_profile_at(&hw.gpus[0], instance->profile);
		for (unsigned j = 0; j < MIG_COMPUTES; j++)
			must(instance->computes[j].serial == 0 ||
				     (instance->serial != 0 &&
				      instance->computes[j].size ==
					      profile->slices),
			     "a compute instance that is not whole");
		if (instance->serial == 0)
			continue;
		must(card.current, "an instance without MIG mode");
		must(profile != NULL && instance->size == profile->size &&
			     is_of_one(instance),
		     "an instance that is not whole");
		instance->serial = 0;
		must(mig_fits(&hw.gpus[0], &card, profile, instance->start) ==
			     MIG_OK,
		     "an instance where it cannot be");
		instance->serial = 1;
	}
}

/* A file belongs to one process, so each has its own. */
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

static void die(void)
{
	steps = 0;
	divide(&dying);
}

static void live(void)
{
	last_step = 0;
	divide(&living);
}

int main(int argc, char **argv)
{
	int status = 0;

	must(argc == 2, "usage: mig_crash ROOT");
	root = argv[1];
	must(sim_hardware_load(root, &hw), "no hardware");
	do {
		last_step++;
		status = in_child(die);
		must(WIFSIGNALED(status) || status == 0, "failed by itself");
		must(in_child(check_whole) == 0, "a check failed");
		/* Every other time the next one finds what was left. */
		if (last_step % 2 == 0)
			must(in_child(live) == 0, "the next one failed");
	} while (WIFSIGNALED(status));
	printf("%u steps\n", last_step - 1);
	return last_step < 20;
}
