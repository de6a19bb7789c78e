/*
 * System calls as the library makes them: none is a cancellation point, so that
 * a cancelled thread never leaves one of our locks behind, and none needs a
 * symbol newer than syscall(). They set errno; see struct aq_errno.
 */
#ifndef AQ_SYS_H
#define AQ_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define AQ_LIKELY(x) __builtin_expect(!!(x), 1)
#define AQ_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* On the way of every allocation and free. These lie side by side, since after the
 * driver's system call each page of code costs a walk of the page tables. */
#define AQ_HOT __attribute__((hot))

#define AQ_NS_PER_S UINT64_C(1000000000)

/* The host's errno is the same after our work as before it:
 *	AQ_KEEP_ERRNO;
 * at the head of any function that makes system calls on the host's behalf. */
static inline void aq_errno_restore(const int *saved)
{
	errno = *saved;
}
#define AQ_KEEP_ERRNO \
	__attribute__((cleanup(aq_errno_restore))) const int aq_saved_errno = \
		errno

static inline int aq_sys_open(const char *path, int flags)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0);
}

static inline void aq_sys_close(int fd)
{
	syscall(SYS_close, fd);
}

static inline ssize_t aq_sys_read(int fd, void *buffer, size_t size)
{
	ssize_t n;

	do
		n = syscall(SYS_read, fd, buffer, size);
	while (n < 0 && errno == EINTR);
	return n;
}

static inline int aq_sys_fcntl(int fd, int command, void *argument)
{
	return (int)syscall(SYS_fcntl, fd, command, argument);
}

static inline bool aq_sys_fstat(int fd, struct stat *st)
{
	return syscall(SYS_fstat, fd, st) == 0;
}

static inline void aq_sys_nap(long ns)
{
	struct timespec t = { .tv_nsec = ns };

	syscall(SYS_nanosleep, &t, NULL);
}

/* By CLOCK_MONOTONIC. Sooner, if a signal comes. */
static inline void aq_sys_sleep_until(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / AQ_NS_PER_S),
			      (long)(ns % AQ_NS_PER_S) };

	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static inline uint64_t aq_now(void)
{
	struct timespec t;

	if (clock_gettime(CLOCK_MONOTONIC, &t) != 0)
		return 0;
	return (uint64_t)t.tv_sec * AQ_NS_PER_S + (uint64_t)t.tv_nsec;
}

#endif
