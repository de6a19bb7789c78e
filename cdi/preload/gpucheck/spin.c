/*
 * A tenant on a real GPU: kernels that spin for a given time, for a number of
 * seconds; prints how much of that time the GPU worked for it.
 *
 *	spin <kernel us> <seconds> <sync every n launches; 0: never>
 *
 * The kernel counts the GPU's own clock while it runs, so that a time slice
 * given to another process does not count.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *ptx =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry spin(.param .u64 cycles)\n"
	"{\n"
	"\t.reg .u64 %start, %now, %want;\n"
	"\t.reg .pred %more;\n"
	"\tld.param.u64 %want, [cycles];\n"
	"\tmov.u64 %start, %clock64;\n"
	"again:\n"
	"\tmov.u64 %now, %clock64;\n"
	"\tsub.u64 %now, %now, %start;\n"
	"\tsetp.lt.u64 %more, %now, %want;\n"
	"\t@%more bra again;\n"
	"\tret;\n"
	"}\n";

static void *driver;

static void *find(const char *name)
{
	void *function = dlsym(driver, name);

	if (!function) {
		fprintf(stderr, "spin: no %s\n", name);
		exit(1);
	}
	return function;
}

#define cu(name, types, ...)                                              \
	do {                                                              \
		int result_ = ((int(*) types)find(#name))(__VA_ARGS__);   \
		if (result_) {                                            \
			fprintf(stderr, "spin: " #name ": %d\n", result_); \
			exit(1);                                          \
		}                                                         \
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double us, seconds, end;
	int device, khz, sync;
	void *context, *module, *function, *stream;
	unsigned long done = 0, sent = 0;

	if (argc != 4)
		return 2;
	us = atof(argv[1]);
	seconds = atof(argv[2]);
	sync = atoi(argv[3]);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		return 1;
	cu(cuInit, (unsigned), 0);
	cu(cuDeviceGet, (int *, int), &device, 0);
	cu(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
	cu(cuCtxSetCurrent, (void *), context);
	cu(cuDeviceGetAttribute, (int *, int, int), &khz, 13, device);
	cu(cuModuleLoadData, (void **, const void *), &module, ptx);
	cu(cuModuleGetFunction, (void **, void *, const char *), &function,
	   module, "spin");
	cu(cuStreamCreate, (void **, unsigned), &stream, 1);
	uint64_t cycles = (uint64_t)(us * khz / 1000);
	void *parameters[] = { &cycles };

	end = now() + seconds;
	while (now() < end) {
		cu(cuLaunchKernel,
		   (void *, unsigned, unsigned, unsigned, unsigned, unsigned,
		    unsigned, unsigned, void *, void **, void **),
		   function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
		sent++;
		/* A queue that is never longer than a fifth of a second. */
		if ((sync && sent % (unsigned)sync == 0) ||
		    (double)(sent - done) * us > 200000) {
			cu(cuStreamSynchronize, (void *), stream);
			done = sent;
		}
	}
	cu(cuStreamSynchronize, (void *), stream);
	printf("%.1f\n", 100 * (double)sent * us / 1e6 / (now() - end + seconds));
	return 0;
}
