/*
 * Whether a real driver is what the library takes it for.
 *
 * The library exchanges what cuGetProcAddress returns by the identity of the
 * pointer, so for every function that it wraps the exported name and
 * cuGetProcAddress must give the same pointer; where they differ, the library
 * asks for both at start, and this says so.
 *
 *	identity		with LD_PRELOAD unset
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../src/functions.h"

static const struct row {
	const char *name, *base;
	int since, stream;
} rows[] = {
#define ROW(function, base, since, stream) { #function, base, since, stream },
	AQ_WRAPPED_CUDA(ROW)
#undef ROW
};

static __typeof__(cuGetProcAddress_v2) *lookup;

static void *asked(const struct row *row, int version)
{
	void *function = NULL;
	int status;

	if (lookup(row->base, &function, version, (cuuint64_t)row->stream,
		   &status) != CUDA_SUCCESS)
		return NULL;
	return function;
}

/* Newer versions of the base name that the library does not wrap. */
static int check_newest(const struct row *row, void *driver, int version)
{
	void *newest = asked(row, version);

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (strcmp(rows[i].base, row->base) == 0 &&
		    (dlsym(driver, rows[i].name) == newest ||
		     asked(&rows[i], rows[i].since) == newest))
			return 0;
	if (newest)
		printf("unknown %s: version %d is none that is wrapped\n",
		       row->base, version);
	return newest != NULL;
}

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int version = 0, same = 0, different = 0, missing = 0, unknown = 0;
	int (*driver_version)(int *);

	if (!driver) {
		printf("%s\n", dlerror());
		return 2;
	}
	driver_version = dlsym(driver, "cuDriverGetVersion");
	lookup = dlsym(driver, "cuGetProcAddress_v2");
	if (!driver_version || driver_version(&version) || !lookup) {
		printf("no cuGetProcAddress_v2\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *row = &rows[i];
		void *exported = dlsym(driver, row->name);
		void *given = row->since ? asked(row, row->since) : NULL;

		if (!exported) {
			printf("missing %s\n", row->name);
			missing++;
		} else if (given && given != exported) {
			printf("different %s: exported %p, for version %d %p\n",
			       row->name, exported, row->since, given);
			different++;
		} else {
			same++;
		}
		if (row->since)
			unknown += check_newest(row, driver, version);
	}
	printf("CUDA %d: %d same, %d different, %d missing, %d of unknown versions\n",
	       version, same, different, missing, unknown);
	return different || unknown;
}
