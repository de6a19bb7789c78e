/*
 * A lock among the threads of this process: a futex word with the states free,
 * held, and held with waiters. Uncontended it costs two atomic instructions.
 * Unlike a pthread mutex it can be put back to free in a forked child, whatever
 * another thread of the parent was doing.
 */
#ifndef AQ_LOCK_H
#define AQ_LOCK_H

#include <linux/futex.h>

#include "sys.h"

struct aq_lock {
	uint32_t word;
};

static inline void aq_lock_contended(struct aq_lock *lock)
{
	AQ_KEEP_ERRNO;

	while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE) != 0)
		syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL);
}

static inline void aq_lock(struct aq_lock *lock)
{
	uint32_t free = 0;

	if (AQ_UNLIKELY(!__atomic_compare_exchange_n(&lock->word, &free, 1,
						     false, __ATOMIC_ACQUIRE,
						     __ATOMIC_RELAXED)))
		aq_lock_contended(lock);
}

static inline bool aq_lock_try(struct aq_lock *lock)
{
	uint32_t free = 0;

	return __atomic_compare_exchange_n(&lock->word, &free, 1, false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void aq_unlock(struct aq_lock *lock)
{
	if (AQ_UNLIKELY(__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) ==
			2)) {
		AQ_KEEP_ERRNO;

		syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1);
	}
}

static inline void aq_lock_reset(struct aq_lock *lock)
{
	__atomic_store_n(&lock->word, 0, __ATOMIC_RELAXED);
}

#endif
