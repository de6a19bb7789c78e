/*
 * Threads of one process, each with its kind of work.
 *
 *   crowd <threads> <rounds>
 *
 * Prints how many calls were refused, and how many failed otherwise.
 */
#include <pthread.h>
#include <stdio.h>

#include "work.h"

#define THREADS_MAX 64

static struct work works[THREADS_MAX];
static unsigned long rounds;
static CUcontext context;

static void *work(void *at)
{
	struct work *w = at;
	unsigned seed = (unsigned)(w - works);
	enum work_kind kind = seed % WORK_KINDS;

	cuda.cuCtxSetCurrent(context);
	for (unsigned long i = 0; i < rounds; i++)
		work_round(w, kind, &seed);
	work_finish(w, kind);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned threads = argc == 3 ? (unsigned)atoi(argv[1]) : 0;
	pthread_t ids[THREADS_MAX];
	struct work sum = { 0 };

	if (threads < 1 || threads > THREADS_MAX)
		return 3;
	rounds = strtoul(argv[2], NULL, 10);
	driver_load();
	if (cuda.cuInit(0) || cuda.cuDevicePrimaryCtxRetain(&context, 0))
		return 3;
	for (unsigned i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, work, &works[i]);
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		sum.refused += works[i].refused;
		sum.odd += works[i].odd;
	}
	printf("%lu %lu\n", sum.refused, sum.odd);
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
