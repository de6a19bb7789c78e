/*
 * Looks functions up by every path that programs use and prints, for each,
 * which library the answer is in and under what name.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int get_v1(const char *, void **, int, uint64_t);
typedef int get_v2(const char *, void **, int, uint64_t, int *);
typedef int which(void);

static void show(const char *path, const char *name, void *found)
{
	const char *error = dlerror();
	const char *file = "none", *symbol = "-";
	Dl_info info;

	if (found && dladdr(found, &info)) {
		file = strrchr(info.dli_fname, '/');
		file = file ? file + 1 : info.dli_fname;
		symbol = info.dli_sname ? info.dli_sname : "-";
	}
	printf("%s %s: %s %s%s\n", path, name, file, symbol,
	       error ? " error" : "");
}

static void by_name(const char *name, void *driver)
{
	void *self = dlopen(NULL, RTLD_NOW), *libc = dlopen("libc.so.6",
							      RTLD_NOW);

	dlerror();
	show("handle", name, dlsym(driver, name));
	show("default", name, dlsym(RTLD_DEFAULT, name));
	show("next", name, dlsym(RTLD_NEXT, name));
	show("next again", name, dlsym(RTLD_NEXT, name));
	show("program", name, dlsym(self, name));
	show("libc", name, dlsym(libc, name));
	show("versioned", name, dlvsym(driver, name, "any"));
}

static void by_version(get_v1 *one, get_v2 *two, const char *name, int version,
		       uint64_t flags)
{
	char path[64];
	void *found = NULL;
	int status = -1;
	int result = two(name, &found, version, flags, &status);

	snprintf(path, sizeof(path), "procaddr_v2 %d/%d %d %d", version,
		 (int)flags, result, status);
	show(path, name, found);
	found = NULL;
	result = one(name, &found, version, flags);
	snprintf(path, sizeof(path), "procaddr %d/%d %d", version, (int)flags,
		 result);
	show(path, name, found);
}

/* Two libraries, each of which asks for the next definition after its own. */
static void by_next(void)
{
	which *first = (which *)dlsym(RTLD_DEFAULT, "first_next");
	which *second = (which *)dlsym(RTLD_DEFAULT, "second_next");

	printf("next of first %d, of second %d\n", first ? first() : 0,
	       second ? second() : 0);
}

int main(int argc, char **argv)
{
	static const char *const names[] = {
		"cuMemAlloc_v2",   "cuMemAllocAsync_ptsz", "cuGetProcAddress_v2",
		"cuMemAlloc",	   "cuCtxSynchronize",	   "cuNoSuchThing",
		"cudaMalloc",	   "curl_easy_init",	   "qsort",
	};
	void *driver;
	get_v1 *one;
	get_v2 *two;

	(void)argc;
	(void)argv;
	show("before the driver", "cuInit", dlsym(RTLD_DEFAULT, "cuInit"));
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver)
		return 1;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		by_name(names[i], driver);
	one = (get_v1 *)dlsym(driver, "cuGetProcAddress");
	two = (get_v2 *)dlsym(driver, "cuGetProcAddress_v2");
	by_version(one, two, "cuMemAlloc", 11030, 0);
	by_version(one, two, "cuMemAlloc", 12000, 1);
	by_version(one, two, "cuMemAlloc", 13000, 2);
	by_version(one, two, "cuMemAllocAsync", 11020, 0);
	by_version(one, two, "cuMemAllocAsync", 12000, 2);
	by_version(one, two, "cuMemAllocAsync", 11010, 0);
	by_version(one, two, "cuCtxGetDevice", 12000, 0);
	by_version(one, two, "cuCtxGetDevice", 13000, 0);
	by_version(one, two, "cuCtxSynchronize", 13000, 0);
	by_version(one, two, "cuGetProcAddress", 11030, 0);
	by_version(one, two, "cuGetProcAddress", 12000, 0);
	by_version(one, two, "cuNoSuchThing", 13000, 0);
	by_next();
	return 0;
}
