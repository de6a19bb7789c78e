/*
 * Reads an agent page while another thread writes it: the states that are read
 * must be whole. Prints what went wrong, or nothing.
 *
 *   agent whole|stuck
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "../src/agent.c"

#define READS 200000

static struct aq_agent page = { .magic = AQ_AGENT_MAGIC, .abi = AQ_ABI };
static struct aq_share share = { .agent = &page };
static uint32_t stop;

void aq_share_path(char path[AQ_PATH_MAX], const struct aq_share *of,
		   const char *file)
{
	strcpy(path, of->name);
	strcat(path, file);
}

#define STORE(field, value) \
	__atomic_store_n(&(field), (value), __ATOMIC_SEQ_CST)

/* Every field is the number of the write. */
static void write_page(uint32_t n, bool finish)
{
	STORE(page.seq, 2 * n - 1);
	STORE(page.t_mono, n);
	STORE(page.k_permille, n);
	STORE(page.core_permille, n);
	STORE(page.context_mib, n);
	STORE(page.slot_overhead_mib[7], n);
	STORE(page.slot_generation[7], (uint8_t)n);
	if (finish)
		STORE(page.seq, 2 * n);
}

static void *writer(void *unused)
{
	for (uint32_t n = 2; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); n++)
		write_page(n, true);
	return unused;
}

static int check(const struct aq_agent_view *view)
{
	if (view->t_mono == view->k_permille &&
	    view->t_mono == view->core_permille &&
	    view->t_mono == view->context_mib && view->seq == 2 * view->t_mono)
		return 0;
	printf("seq %lu t_mono %lu k %u core %u context %u\n", view->seq,
	       view->t_mono, view->k_permille, view->core_permille,
	       view->context_mib);
	return 1;
}

static int read_whole_states(void)
{
	struct aq_agent_view view, last = { 0 };
	pthread_t thread;
	int wrong = 0;

	write_page(1, true);
	pthread_create(&thread, NULL, writer, NULL);
	for (unsigned i = 0; i < READS && !wrong; i++) {
		/* The overhead of generation g was written with g in it. */
		uint32_t overhead = aq_agent_overhead(&share, 7, i);

		if (overhead && (overhead & 0xff) != (i & 0xff))
			wrong = printf("overhead %u of generation %u\n",
				       overhead, i);
		aq_agent_read(&share, &view);
		if (view.t_mono < last.t_mono)
			wrong = printf("went back\n");
		if (view.t_mono) /* something was seen */
			wrong |= check(&view);
		last = view;
	}
	STORE(stop, 1);
	pthread_join(thread, NULL);
	return wrong;
}

/* The writer was killed: the last whole state stays, and no reader hangs. */
static int read_stuck_page(void)
{
	struct aq_agent_view view;
	int wrong;

	write_page(3, true);
	wrong = !aq_agent_read(&share, &view) || check(&view) ||
		aq_agent_overhead(&share, 7, 256 + 3) != 3 ||
		aq_agent_overhead(&share, 7, 4) ||
		aq_agent_overhead(&share, AQ_SLOT_COUNT, 3);
	write_page(4, false);
	wrong |= aq_agent_seq(&share) == view.seq;
	wrong |= aq_agent_read(&share, &view) || view.t_mono != 3 ||
		 check(&view) || aq_agent_overhead(&share, 7, 4);
	write_page(5, true);
	wrong |= !aq_agent_read(&share, &view) || view.t_mono != 5 ||
		 aq_agent_seq(&share) != view.seq;
	if (wrong)
		printf("seq %lu t_mono %lu\n", view.seq, view.t_mono);
	return wrong;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "stuck"))
		return read_stuck_page();
	return read_whole_states();
}
