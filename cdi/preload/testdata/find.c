/* Whether a name gives the library's wrapper when the driver, which here has
 * every function, is looked up: exits with 0 when it does. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	int nvml = argc > 1 && !strncmp(argv[1], "nvml", 4);
	void *driver = dlopen(nvml ? "libnvidia-ml.so.1" : "libcuda.so.1",
			      RTLD_NOW);
	void *found = driver ? dlsym(driver, argv[1]) : NULL;
	Dl_info info;

	if (!found) /* an old name, which this driver has not */
		return strchr(argv[1], '_') || nvml ? 1 : 0;
	if (!dladdr(found, &info))
		return 2;
	puts(info.dli_fname);
	return strstr(info.dli_fname, "libaliquot.so") ? 0 : 3;
}
