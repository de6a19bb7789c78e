/*
 * A tenant on a real GPU: kernels that take a given time each.
 *
 *	spin calibrate
 *		prints how many turns a kernel makes in a microsecond, on a GPU
 *		that nobody else uses
 *	spin <turns per us> <kernel us> <sync every n launches; 0: never> <from>
 *	     <until>
 *		prints which percent of the time between two moments of
 *		CLOCK_MONOTONIC, in seconds, its kernels took
 *	spin ptx
 *		prints the kernel; SPIN_MODULE may name a file with what it was
 *		compiled to, where the driver cannot compile it itself
 *
 * A kernel is an amount of work and not a time to wait: no clock that a kernel
 * can read is known to stand still while the GPU works for another process. How
 * long the work takes is measured beforehand, without neighbours, after the
 * clocks have risen. Each kernel says by its number that it is done, into memory
 * of the host, so nobody has to wait for it to know.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "driver.h"

static const char *ptx =
	".version 6.0\n.target sm_60\n.address_size 64\n"
	".visible .entry spin(.param .u64 turns, .param .u64 number,\n"
	"\t.param .u64 done)\n"
	"{\n"
	"\t.reg .u64 %left, %number, %done;\n"
	"\t.reg .u32 %x;\n"
	"\t.reg .pred %more;\n"
	"\tld.param.u64 %left, [turns];\n"
	"\tld.param.u64 %number, [number];\n"
	"\tld.param.u64 %done, [done];\n"
	"\tcvt.u32.u64 %x, %number;\n"
	"again:\n"
	"\tmad.lo.u32 %x, %x, 1664525, 1013904223;\n"
	"\tsub.u64 %left, %left, 1;\n"
	"\tsetp.ne.u64 %more, %left, 0;\n"
	"\t@%more bra again;\n"
	"\tst.global.u32 [%done+8], %x;\n" /* so that it is not left out */
	"\tst.global.u64 [%done], %number;\n"
	"\tret;\n"
	"}\n";

static void *function, *stream;
static volatile uint64_t *done; /* the number of the last kernel that ended */
static uint64_t done_device;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

static void *load(void)
{
	const char *compiled = getenv("SPIN_MODULE");
	void *module;

	if (compiled)
		need(cuModuleLoad, (void **, const char *), &module, compiled);
	else
		need(cuModuleLoadData, (void **, const void *), &module, ptx);
	return module;
}

static void set_up(void)
{
	void *context, *module, *memory;
	int device;

	driver_start(&device, &context);
	module = load();
	need(cuModuleGetFunction, (void **, void *, const char *), &function,
	     module, "spin");
	need(cuStreamCreate, (void **, unsigned), &stream, 1);
	need(cuMemHostAlloc, (void **, size_t, unsigned), &memory, 16, 2);
	memset(memory, 0, 16);
	done = memory;
	done_device = (uintptr_t)memory; /* the GPU sees it where we do */
}

static void launch(uint64_t turns, uint64_t number)
{
	void *parameters[] = { &turns, &number, &done_device };

	need(cuLaunchKernel,
	     (void *, unsigned, unsigned, unsigned, unsigned, unsigned,
	      unsigned, unsigned, void *, void **, void **),
	     function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void synchronize(void)
{
	need(cuStreamSynchronize, (void *), stream);
}

static double timed(void *start, void *end, uint64_t turns)
{
	float ms = 0;

	need(cuEventRecord, (void *, void *), start, stream);
	launch(turns, 1);
	need(cuEventRecord, (void *, void *), end, stream);
	synchronize();
	need(cuEventElapsedTime, (float *, void *, void *), &ms, start, end);
	return (double)ms * 1000;
}

/* Two lengths, so that what each launch costs is in neither. The shortest of
 * several, since nothing makes a kernel faster. */
static void calibrate(void)
{
	const uint64_t less = 2000000, more = 10000000;
	double shorter = INFINITY, longer = INFINITY, end = now() + 1;
	void *events[2];

	need(cuEventCreate, (void **, unsigned), &events[0], 0);
	need(cuEventCreate, (void **, unsigned), &events[1], 0);
	while (now() < end)
		timed(events[0], events[1], less);
	for (int i = 0; i < 7; i++) {
		shorter = fmin(shorter, timed(events[0], events[1], less));
		longer = fmin(longer, timed(events[0], events[1], more));
	}
	printf("%.3f\n", (double)(more - less) / (longer - shorter));
}

/* Not more than a fifth of a second of work is under way, or two kernels. */
static uint64_t room(double us)
{
	double kernels = 200000 / us;

	return kernels > 2 ? (uint64_t)kernels : 2;
}

static double run(double rate, double us, unsigned sync, double from,
		  double until)
{
	const uint64_t turns = (uint64_t)(rate * us), most = room(us);
	uint64_t sent = 0, first = 0;
	double begun = 0, t;

	if (turns == 0 || now() > from) {
		fprintf(stderr, "spin: %s\n",
			turns ? "started too late" : "a kernel of no turns");
		exit(1);
	}
	while ((t = now()) < until) {
		if (!begun && t >= from) {
			first = *done;
			begun = t;
		}
		if (sent - *done >= most) {
			nap();
			continue;
		}
		launch(turns, ++sent);
		if (sync && sent % sync == 0)
			synchronize();
	}
	return 100 * (double)(*done - first) * us / 1e6 / (t - begun);
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "ptx") == 0)
		return fputs(ptx, stdout) < 0;
	if (argc == 2 && strcmp(argv[1], "calibrate") == 0) {
		set_up();
		calibrate();
		return 0;
	}
	if (argc != 6)
		return 2;
	set_up();
	printf("%.2f\n", run(atof(argv[1]), atof(argv[2]),
			     (unsigned)atoi(argv[3]), atof(argv[4]),
			     atof(argv[5])));
	fflush(stdout);
	/* What is still queued is not waited for: the process ends with it. */
	_Exit(0);
}
