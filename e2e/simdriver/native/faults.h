/*
 * Faults that a test asks for, read anew at every call from
 * run/nvidia-sim/faults, one a line:
 *
 *	nvmlDeviceGetMemoryInfo error 999	the function returns that number
 *	nvmlDeviceGetName call 3 error 999	only the third call from now on does
 *	gpu 3 lost				card 3 fell off the bus
 *	gpu 3 xid 79				that event happens, once
 *
 * Cards are numbered as in the description. Calls are counted in each process by
 * itself, and anew when the file changes.
 */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H

#include "sim.h"

/* The number that function must return, or 0. */
int fault_of(const char *root, const char *function);
bool fault_gpu_lost(const char *root, unsigned gpu);
/* The event lines after the first skip; false when there is no more. */
bool fault_xid(const char *root, unsigned skip, unsigned *gpu, unsigned *xid);
/* Waits until the file may have changed, at most so long. */
void fault_wait(const char *root, int milliseconds);

#endif
