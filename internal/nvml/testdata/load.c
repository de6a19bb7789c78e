/* Keeps the first GPU of a simulated driver busy until it is killed. */
#include <stddef.h>
#include <stdio.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned,
		   unsigned, unsigned, void *, void **, void **);

int main(void)
{
	void *context, *module, *function;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
	    cuCtxSetCurrent(context) ||
	    cuModuleLoadData(&module, "aliquot-sim-module") ||
	    cuModuleGetFunction(&function, module, "busy_5ms"))
		return 1;
	while (cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL,
			      NULL) == 0)
		;
	return 1;
}
