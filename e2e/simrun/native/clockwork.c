/*
 * The simulated side of the node's agent: at each tick of the virtual clock it
 * prints what NVML says, and goes on when it is told so, with the clock standing
 * still in between.
 *
 *	clockwork <tick ms> <end ms> <pid of a tenant>...
 *
 *	tick <ns>
 *	busy <ns of GPU time that the tenant had>, a line a tenant
 *	sample <pid> <timestamp us> <percent>
 *	...
 *	end
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct sample {
	unsigned pid;
	unsigned long long timestamp;
	unsigned sm, memory, encoder, decoder;
};

static void *library;

static void *find(const char *name)
{
	void *function = dlsym(library, name);

	if (!function) {
		fprintf(stderr, "clockwork: no %s\n", name);
		exit(1);
	}
	return function;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u),
			      (long)(ns % 1000000000u) };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static unsigned long long last_seen;

static void print_samples(void *device)
{
	int (*query)(void *, struct sample *, unsigned *, unsigned long long) =
		find("nvmlDeviceGetProcessUtilization");
	static struct sample samples[1024];
	unsigned count = 1024;

	if (query(device, samples, &count, last_seen) != 0)
		return; /* nobody used the GPU */
	for (unsigned i = 0; i < count; i++) {
		printf("sample %u %llu %u\n", samples[i].pid,
		       samples[i].timestamp, samples[i].sm);
		if (samples[i].timestamp > last_seen)
			last_seen = samples[i].timestamp;
	}
}

int main(int argc, char **argv)
{
	uint64_t tick = argc > 2 ? (uint64_t)atol(argv[1]) * 1000000u : 0;
	uint64_t start = now_ns(), end, next = start;
	uint64_t (*busy)(unsigned, unsigned);
	char line[16];
	void *device;

	library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!tick || !library) {
		fprintf(stderr, "clockwork: no NVML, or no tick\n");
		return 2;
	}
	end = start + (uint64_t)atol(argv[2]) * 1000000u;
	if (((int (*)(void))find("nvmlInit_v2"))() != 0 ||
	    ((int (*)(unsigned, void **))find("nvmlDeviceGetHandleByIndex_v2"))(
		    0, &device) != 0)
		return 1;
	busy = find("sim_busy_ns");
	while (next < end) {
		next += tick;
		sleep_until(next);
		printf("tick %llu\n", (unsigned long long)now_ns());
		for (int i = 3; i < argc; i++)
			printf("busy %llu\n", (unsigned long long)busy(
						      0, (unsigned)atoi(argv[i])));
		print_samples(device);
		printf("end\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 1;
	}
	return 0;
}
