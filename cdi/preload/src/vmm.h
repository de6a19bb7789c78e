/*
 * Physical memory of cuMemCreate, as far as others than vmm.c hold it. All under
 * one lock, which is also held over the driver's calls that map or end
 * something.
 */
#ifndef AQ_VMM_H
#define AQ_VMM_H

#include <stdint.h>

#include "functions.h"

#define AQ_NO_OBJECT 0u
#define AQ_OBJECT_BITS 24u

void aq_vmm_lock(void);
void aq_vmm_unlock(void);

/* What a handle stands for; AQ_NO_OBJECT: nothing that is charged. */
uint32_t aq_vmm_object(CUmemGenericAllocationHandle handle);

/* One holder more, or less. With the last one the charge ends. */
void aq_vmm_hold(uint32_t object);
void aq_vmm_leave(uint32_t object);

/* sparse.c: an array has been destroyed; nothing is mapped into it any more. */
void aq_sparse_destroyed(const void *array);

#endif
