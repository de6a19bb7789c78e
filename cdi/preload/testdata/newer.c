/*
 * A driver that is newer than the library: it exports a version of one function
 * and hands out a version of another that did not exist when the library was
 * made.
 */
#include <stdint.h>
#include <string.h>

int cuInit(unsigned flags)
{
	return flags != 0;
}

int cuDriverGetVersion(int *version)
{
	*version = 14000;
	return 0;
}

int cuMemAlloc_v2(void)
{
	return 801;
}

int cuMemAlloc_v3(void)
{
	return 801;
}

int cuMemAllocAsync_ptsz(void)
{
	return 801;
}

int cuMemAllocAsync_v2_ptsz(void)
{
	return 801;
}

int cuMemCreate(void)
{
	return 801;
}

static int create_of_14_0(void)
{
	return 801;
}

int cuCtxSynchronize_v9(void) /* not one that is limited */
{
	return 0;
}

int cuGetProcAddress_v2(const char *name, void **function, int version,
			uint64_t flags, int *status)
{
	(void)flags;
	*function = NULL;
	if (!strcmp(name, "cuMemCreate"))
		*function = version < 14000 ? (void *)cuMemCreate
					    : (void *)create_of_14_0;
	if (!strcmp(name, "cuMemAlloc"))
		*function = (void *)cuMemAlloc_v2;
	*status = *function ? 0 : 1;
	return 0;
}
