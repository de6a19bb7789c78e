/*
 * CUDA arrays have no address that we see, so they are kept by handle. Large
 * ones are charged in whole blocks. Small ones share blocks with each other in
 * a way that only the driver knows; see arrays.c.
 */
#ifndef AQ_ARRAYS_H
#define AQ_ARRAYS_H

#include "charge.h"
#include "functions.h"

struct aq_array {
	uint64_t handle, value; /* its entry in the table */
	CUcontext context;
};

/* Units to reserve before an array of so many bytes is made. */
uint32_t aq_array_units(uint64_t bytes);

/* The driver has made it: records it and keeps what it costs of the hold. False:
 * out of memory of our own. */
bool aq_arrays_add(struct aq_hold *hold, const void *handle,
		   CUcontext context, uint64_t bytes);

/* As with pointers: out before the driver destroys it, back if it did not, and
 * retired when it did. */
bool aq_arrays_take(const void *handle, struct aq_array *array);
void aq_arrays_put_back(const struct aq_array *array);
void aq_arrays_retire(const struct aq_array *array);

/* The context has ended, and its arrays with it. */
void aq_arrays_sweep(CUcontext context);

#endif
