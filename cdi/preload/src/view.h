/* What the wrappers of NVML have in common. */
#ifndef AQ_VIEW_H
#define AQ_VIEW_H

#include "share.h"

/* The GPU of a device of NVML; *gpu is NULL when it is not limited. False: the
 * device cannot be told, and so neither whether it is limited. */
bool aq_gpu_of_nvml(nvmlDevice_t device, struct aq_gpu **gpu);

#endif
