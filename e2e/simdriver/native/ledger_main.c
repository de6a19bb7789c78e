/*
 * Prints the ledger of a driver root as JSON, after freeing what dead processes
 * left, and how long the cards have worked; or does what an admin does with MIG.
 * A program of its own, since to open the ledger in a process that uses the
 * driver would drop that process's locks.
 */
#include "compute.h"
#include "ledger.h"
#include "ledger_mig.h"
#include "mig.h"

#include <stdio.h>
#include <string.h>

static void print_text(const char *text)
{
	putchar('"');
	for (; *text != '\0'; text++) {
		unsigned char c = (unsigned char)*text;
		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20 || c >= 0x7f)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

static struct compute *work; /* NULL when nobody has computed */

static void print_gpus(const struct ledger *l, const struct sim_hardware *hw)
{
	for (unsigned g = 0; g < hw->gpu_count; g++) {
		const struct sim_gpu *gpu = &hw->gpus[g];
		printf("%s{\"uuid\":", g == 0 ? "" : ",");
		print_text(gpu->uuid);
		printf(",\"capacity\":%ju,\"used\":%ju,\"peak\":%ju,"
		       "\"busy\":%ju}",
		       (uintmax_t)sim_gpu_capacity(gpu),
		       (uintmax_t)l->gpus[g].used, (uintmax_t)l->gpus[g].peak,
		       (uintmax_t)(work == NULL ? 0 : work->gpus[g].busy));
	}
}

static void print_group(const struct ledger_group *group,
			const struct sim_hardware *hw)
{
	printf("{\"hostname\":");
	print_text(group->hostname);
	printf(",\"mountNamespace\":%ju,\"gpus\":{",
	       (uintmax_t)group->mount_namespace);
	const char *comma = "";
	for (unsigned g = 0; g < hw->gpu_count; g++) {
		const struct ledger_count *count = &group->gpus[g];
		if (count->peak == 0)
			continue;
		printf("%s\"%s\":{\"used\":%ju,\"peak\":%ju}", comma,
		       hw->gpus[g].uuid, (uintmax_t)count->used,
		       (uintmax_t)count->peak);
		comma = ",";
	}
	printf("}}");
}

static void print_busy(uint64_t owner, const struct sim_hardware *hw)
{
	const char *comma = "";

	for (unsigned i = 0; work != NULL && i < work->high; i++) {
		const struct compute_queue *queue = &work->queues[i];
		if (queue->owner != owner)
			continue;
		printf("%s\"%s\":%ju", comma, hw->gpus[compute_card(work, queue)].uuid,
		       (uintmax_t)queue->busy);
		comma = ",";
	}
}

/* The UUID of the MIG device, while it is there. */
static void print_partition(const struct ledger_partition *p)
{
	struct mig_card card;
	char uuid[MIG_UUID_TEXT];

	if (p->instance == 0)
		return;
	mig_read(p->gpu, &card);
	const struct mig_compute *compute =
		&card.instances[p->instance_number].computes[p->compute_number];
	mig_uuid_text(compute->uuid, uuid);
	if (compute->serial == p->compute)
		printf("%s", uuid);
}

static void print_process(const struct ledger *l, unsigned index,
			  const struct sim_hardware *hw)
{
	const struct ledger_slot *slot = &l->slots[index];

	printf("{\"pid\":%u,\"command\":", slot->pid);
	print_text(slot->command);
	printf(",\"hostname\":");
	print_text(l->groups[slot->group].hostname);
	printf(",\"mountNamespace\":%ju,\"used\":{",
	       (uintmax_t)l->groups[slot->group].mount_namespace);
	const char *comma = "";
	for (unsigned g = 0; g < hw->gpu_count; g++) {
		if (slot->used[g] == 0)
			continue;
		printf("%s\"%s\":%ju", comma, hw->gpus[g].uuid,
		       (uintmax_t)slot->used[g]);
		comma = ",";
	}
	printf("},\"partition\":\"");
	print_partition(&slot->partition);
	printf("\",\"busy\":{");
	print_busy(compute_owner(index, slot->generation), hw);
	printf("}}");
}

static void print_ledger(const struct ledger *l, const struct sim_hardware *hw)
{
	printf("{\"gpus\":[");
	print_gpus(l, hw);
	printf("],\"containers\":[");
	for (unsigned i = 0; i < l->group_high; i++) {
		printf("%s", i == 0 ? "" : ",");
		print_group(&l->groups[i], hw);
	}
	printf("],\"processes\":[");
	const char *comma = "";
	for (unsigned i = 0; i < l->high; i++) {
		if (!l->slots[i].in_use)
			continue;
		printf("%s", comma);
		print_process(l, i, hw);
		comma = ",";
	}
	printf("]}\n");
}

int main(int argc, char **argv)
{
	static struct sim_hardware hw;
	const struct ledger *l = NULL;

	if (argc < 2) {
		fprintf(stderr, "usage: %s DRIVER-ROOT [MIG-COMMAND...]\n",
			argv[0]);
		return 2;
	}
	if (!sim_hardware_load(argv[1], &hw) || !ledger_open(argv[1])) {
		fprintf(stderr, "no usable ledger under %s\n", argv[1]);
		return 1;
	}
	if (argc > 2) {
		int result = ledger_mig(argv[1], &hw, argc - 2, argv + 2);
		if (result != 0)
			fprintf(stderr, "NVML error %d\n", result);
		return result != 0;
	}
	mig_open(argv[1]);
	work = compute_copy(argv[1]);
	l = ledger_lock();
	if (l == NULL) {
		fprintf(stderr, "the ledger under %s is locked\n", argv[1]);
		return 1;
	}
	print_ledger(l, &hw);
	ledger_unlock();
	return 0;
}
