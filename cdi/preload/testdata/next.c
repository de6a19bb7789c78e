/* A library among several that define value(); asks for the next one. */
#include <dlfcn.h>

int value(void);
int NAME(void);

int value(void)
{
	return VALUE;
}

int NAME(void)
{
	int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "value");

	return next ? next() : 0;
}
