/* What the wrappers of allocating calls have in common. */
#ifndef AQ_MEMORY_H
#define AQ_MEMORY_H

#include "charge.h"

/* The head of a wrapper that charges the current context's GPU. Returns from it
 * when there is no such function, no context, or no limit. */
#define AQ_ENTER_LIMITED(name, gpu, arguments)                \
	do {                                                  \
		CUresult enter_;                              \
							      \
		AQ_ENTER(name);                               \
		enter_ = aq_gpu_current(&(gpu));              \
		if (AQ_UNLIKELY(enter_ != CUDA_SUCCESS))      \
			return enter_;                        \
		if (!(gpu))                                   \
			return aq_real.name arguments;        \
	} while (0)

/* Reserves; when short, after this process's memory pools have given back what
 * they hold unused, as the driver has them do when the card is full. */
bool aq_reserve_or_trim(struct aq_hold *hold, struct aq_gpu *gpu,
			uint32_t units);

/* The driver has answered the call that the hold is for. Returns what the host
 * is to be told. */
CUresult aq_finish(struct aq_hold *hold, CUresult result, uint64_t pointer,
		   uint64_t bytes);

#endif
