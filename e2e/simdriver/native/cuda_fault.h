/* Failures of single calls, and cuGetProcAddress's own pointers. */
#ifndef SIM_CUDA_FAULT_H
#define SIM_CUDA_FAULT_H

/* Before the first of them can matter. */
void faults_map(const char *root);

/* What cuGetProcAddress gives for a function. */
void *fault_detour(void *function);

#endif
