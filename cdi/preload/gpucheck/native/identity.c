/*
 * Whether a real driver is what the library takes it for.
 *
 * The library exchanges what cuGetProcAddress returns by the identity of the
 * pointer: exported names, and what the driver gives for each of them when the
 * library is bound. Whatever the driver gives besides is handed out as it is.
 *
 *	identity		without the library: says where the two differ,
 *				and which versions nobody knows
 *	identity libaliquot.so	with it preloaded: whether each function, asked
 *				for by each version and flag, is the library's
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../../src/functions.h"

static const struct row {
	const char *name, *base;
	int since, stream;
} rows[] = {
#define ROW(function, base, since, stream) { #function, base, since, stream },
	AQ_WRAPPED_CUDA(ROW)
#undef ROW
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Versions that changed what a name means, and some between them. */
static const int versions[] = {
	2000, 3020, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 10020, 11000,
	11010, 11020, 11030, 11040, 11060, 11080, 12000, 12010, 12020, 12030,
	12040, 12050, 12060, 12080, 12090, 13000, 13010, 13020, 13030,
};

static __typeof__(cuGetProcAddress_v2) *lookup;

static void *ask(const char *base, int version, int flags)
{
	void *function = NULL;
	int status;

	if (lookup(base, &function, version, (cuuint64_t)flags, &status) !=
	    CUDA_SUCCESS)
		return NULL;
	return function;
}

static void *ask_row(const struct row *row)
{
	return row->since ? ask(row->base, row->since, row->stream) : NULL;
}

/* One name may come to mean what another means: cuGraphInstantiate does. */
static bool is_known(void *driver, const void *function)
{
	for (size_t i = 0; i < COUNT(rows); i++)
		if (dlsym(driver, rows[i].name) == function ||
		    ask_row(&rows[i]) == function)
			return true;
	return false;
}

static int compare(void *driver, int version)
{
	int same = 0, different = 0, missing = 0, unknown = 0;

	for (size_t i = 0; i < COUNT(rows); i++) {
		const struct row *row = &rows[i];
		void *exported = dlsym(driver, row->name);
		void *given = ask_row(row), *newest;

		if (!exported) {
			printf("missing %s\n", row->name);
			missing++;
			continue;
		}
		if (given && given != exported) {
			printf("different %s: exported %p, for version %d %p\n",
			       row->name, exported, row->since, given);
			different++;
		} else {
			same++;
		}
		newest = row->since ? ask(row->base, version, row->stream)
				    : NULL;
		if (newest && !is_known(driver, newest)) {
			printf("unknown %s of version %d\n", row->base, version);
			unknown++;
		}
	}
	printf("CUDA %d: %d the same, %d different, %d missing, %d unknown\n",
	       version, same, different, missing, unknown);
	return unknown != 0;
}

static bool is_of(const void *function, const char *library)
{
	Dl_info info;

	return dladdr(function, &info) && info.dli_fname &&
	       strstr(info.dli_fname, library);
}

static int check_wrapped(const char *library, int newest)
{
	int asked = 0, bare = 0;

	for (size_t i = 0; i < COUNT(rows); i++)
		for (size_t v = 0; v <= COUNT(versions); v++)
			for (int flags = 0; flags <= 2; flags++) {
				int version = v < COUNT(versions) ? versions[v]
								  : newest;
				void *found;

				if (version > newest || version < rows[i].since)
					continue;
				found = ask(rows[i].base, version, flags);
				if (!found)
					continue;
				asked++;
				if (is_of(found, library))
					continue;
				bare++;
				printf("not wrapped: %s of version %d, flags %d\n",
				       rows[i].base, version, flags);
			}
	printf("CUDA %d: %d questions, %d answers not wrapped\n", newest, asked,
	       bare);
	return asked == 0 || bare != 0;
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*driver_version)(int *);
	int version = 0;

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
	return argc > 1 ? check_wrapped(argv[1], version)
			: compare(driver, version);
}
