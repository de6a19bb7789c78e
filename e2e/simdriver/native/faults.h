/*
 * Faults that a test asks for, read anew at every call from
 * run/nvidia-sim/faults, one a line:
 *
 *	nvmlDeviceGetMemoryInfo error 999	the function returns that number
 *	nvmlDeviceGetName call 3 error 999	only the third call from now on does
 *	gpu 3 lost				card 3 fell off the bus
 *	gpu 3 xid 79				that event happens, once
 *	gpu 3 event 2				so does one of that type of NVML's
 *	gpu 3 recovery 1			it asks for that nvmlDeviceGpuRecoveryAction_t
 *	gpu 3 remap 2				1: a row is to be remapped, 2: it could not be
 *	gpu 3 slowdown 64			its clocks are held back for those reasons
 *
 * Cards are numbered as in the description. Calls are counted in each process by
 * itself, and anew when the file changes.
 */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H

#include "sim.h"

#define FAULT_EVENT_XID 8u /* nvmlEventTypeXidCriticalError */

/* The number that function must return, or 0. */
int fault_of(const char *root, const char *function);
bool fault_gpu_lost(const char *root, unsigned gpu);
/* An event line: the type is NVML's, the data is an XID or 0. */
struct fault_event {
	unsigned gpu, type, data;
};
/* The event lines after the first skip; false when there is no more. */
bool fault_event(const char *root, unsigned skip, struct fault_event *event);
/* The last number that is given a card under a key, or 0. */
unsigned fault_number(const char *root, unsigned gpu, const char *key);
/* Waits until the file may have changed, at most so long. */
void fault_wait(const char *root, int milliseconds);

#endif
