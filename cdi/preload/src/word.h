/* Arithmetic on charge words (abi.h). */
#ifndef AQ_WORD_H
#define AQ_WORD_H

#include <stdbool.h>
#include <stdint.h>

#include "../abi.h"

#define AQ_UNIT_BYTES (UINT64_C(1) << AQ_UNIT_SHIFT)

static inline uint64_t aq_word(uint64_t generation, uint64_t pending,
			       uint64_t used)
{
	return generation << AQ_GENERATION_SHIFT |
	       pending << AQ_PENDING_SHIFT | used;
}

static inline uint64_t aq_word_generation(uint64_t word)
{
	return word >> AQ_GENERATION_SHIFT;
}

static inline uint64_t aq_word_pending(uint64_t word)
{
	return word >> AQ_PENDING_SHIFT & AQ_FIELD_MAX;
}

static inline uint64_t aq_word_used(uint64_t word)
{
	return word & AQ_FIELD_MAX;
}

/* What is used and not pending. A word written by a hostile neighbour of the
 * same claim may make no sense; it must not make a negative number. */
static inline uint64_t aq_word_settled(uint64_t word)
{
	uint64_t used = aq_word_used(word), pending = aq_word_pending(word);

	return used > pending ? used - pending : 0;
}

static inline uint64_t aq_next_generation(uint64_t generation)
{
	return (generation + 1) & AQ_GENERATION_MAX;
}

enum aq_change {
	AQ_CHANGED,
	AQ_OVER,  /* used would pass the limit */
	AQ_STALE, /* the word is of another generation */
};

/* Adds to used and pending, in one step with the comparison of the generation.
 * limit matters only when used grows. Only what was added is ever subtracted,
 * so the fields do not run into each other. */
static inline enum aq_change aq_word_change(uint64_t *word,
					    uint64_t generation, int64_t used,
					    int64_t pending, uint64_t limit)
{
	uint64_t delta = (uint64_t)used +
			 ((uint64_t)pending << AQ_PENDING_SHIFT);
	uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	do {
		if (aq_word_generation(old) != generation)
			return AQ_STALE;
		if (used > 0 && aq_word_used(old) + (uint64_t)used > limit)
			return AQ_OVER;
	} while (!__atomic_compare_exchange_n(word, &old, old + delta, false,
					      __ATOMIC_SEQ_CST,
					      __ATOMIC_RELAXED));
	return AQ_CHANGED;
}

#endif
