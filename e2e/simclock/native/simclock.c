/*
 * A virtual clock for a set of processes, preloaded into each of them.
 *
 * Every process has a time of its own, which only its sleeping moves on; work
 * between two sleeps takes none. One process runs at a time, the one that is
 * furthest behind, so that what happens depends on nothing but the programs.
 * A process that reads the clock may be ahead of the others by the lookahead:
 * without it every reading would be a change of processes.
 *
 * Only a process's first thread takes part. Other clocks than the monotonic one
 * stay as they are.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PARTICIPANTS 64
#define READ_NS 20 /* that reading takes, so that nobody waits by reading only */

enum { EXPECTED = 1, PRESENT = 2, GONE = 3 };

/* The file. The Go package makes it, with the members it expects. */
struct page {
	uint32_t turn; /* who runs; a futex */
	uint32_t count;
	uint64_t lookahead; /* ns */
	struct {
		uint32_t state;
		uint32_t spare;
		uint64_t time; /* ns */
	} members[PARTICIPANTS];
};

static struct page *page;
static unsigned self;

/* The kernel's calls, past our own definitions. */
static long kernel(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10),
			   "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#endif
}

static int failed(long result)
{
	if (result >= 0)
		return 0;
	errno = (int)-result;
	return -1;
}

static unsigned furthest_behind(void)
{
	unsigned least = PARTICIPANTS;

	for (unsigned i = 0; i < page->count; i++)
		if (page->members[i].state != GONE &&
		    (least == PARTICIPANTS ||
		     page->members[i].time < page->members[least].time))
			least = i;
	return least;
}

static void wait_for_turn(void)
{
	uint32_t turn;

	while ((turn = __atomic_load_n(&page->turn, __ATOMIC_ACQUIRE)) != self)
		kernel(SYS_futex, (long)&page->turn, FUTEX_WAIT, (long)turn, 0,
		       0, 0);
}

static void pass_turn(unsigned to)
{
	__atomic_store_n(&page->turn, to, __ATOMIC_RELEASE);
	kernel(SYS_futex, (long)&page->turn, FUTEX_WAKE, PARTICIPANTS, 0, 0, 0);
}

/* Lets those run who are behind by more than the lookahead. */
static void yield(uint64_t lookahead)
{
	unsigned next = furthest_behind();

	if (next == self ||
	    page->members[next].time + lookahead >= page->members[self].time)
		return;
	pass_turn(next);
	wait_for_turn();
}

static void leave(void)
{
	unsigned next;

	page->members[self].state = GONE;
	next = furthest_behind();
	if (next != PARTICIPANTS)
		pass_turn(next);
}

static void __attribute__((constructor)) join(void)
{
	const char *path = getenv("SIMCLOCK"), *index = getenv("SIMCLOCK_MEMBER");
	long fd;

	if (!path || !index)
		return;
	fd = kernel(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CLOEXEC, 0, 0,
		    0);
	if (fd < 0)
		abort();
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED,
		    (int)fd, 0);
	if (page == MAP_FAILED)
		abort();
	close((int)fd);
	self = (unsigned)atoi(index);
	wait_for_turn();
	page->members[self].state = PRESENT;
	atexit(leave);
}

static bool is_virtual(clockid_t clock)
{
	return page && (clock == CLOCK_MONOTONIC ||
			clock == CLOCK_MONOTONIC_RAW ||
			clock == CLOCK_MONOTONIC_COARSE);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	uint64_t now;

	if (!is_virtual(clock))
		return failed(kernel(SYS_clock_gettime, clock, (long)t, 0, 0, 0,
				     0));
	page->members[self].time += READ_NS;
	yield(page->lookahead);
	now = page->members[self].time;
	t->tv_sec = (time_t)(now / 1000000000u);
	t->tv_nsec = (long)(now % 1000000000u);
	return 0;
}

/* A rest shorter than the lookahead does not end it. */
static void sleep_until(uint64_t ns)
{
	uint64_t now = page->members[self].time;

	if (ns <= now)
		return;
	page->members[self].time = ns;
	yield(ns - now < page->lookahead ? page->lookahead : 0);
}

static uint64_t ns_of(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t,
		    struct timespec *left)
{
	if (!is_virtual(clock))
		return (int)-kernel(SYS_clock_nanosleep, clock, flags, (long)t,
				    (long)left, 0, 0);
	sleep_until(flags & TIMER_ABSTIME
			    ? ns_of(t)
			    : page->members[self].time + ns_of(t));
	return 0;
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
	if (!page)
		return failed(kernel(SYS_nanosleep, (long)t, (long)left, 0, 0, 0,
				     0));
	sleep_until(page->members[self].time + ns_of(t));
	return 0;
}

int usleep(useconds_t us)
{
	struct timespec t = { us / 1000000, (long)(us % 1000000) * 1000 };

	return nanosleep(&t, NULL);
}

long syscall(long number, ...)
{
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_clock_nanosleep && is_virtual((clockid_t)a[0]))
		return clock_nanosleep((clockid_t)a[0], (int)a[1],
				       (const struct timespec *)a[2], NULL);
	if (number == SYS_nanosleep && page)
		return nanosleep((const struct timespec *)a[0], NULL);
	long result = kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);

	return result < 0 ? failed(result) : result;
}
