/* The driver root and the device nodes under it. */
#include "sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define NVIDIA_MAJOR 195 /* character device number of /dev/nvidia<minor> */

bool sim_root_of(const void *address, char root[SIM_PATH_MAX])
{
	Dl_info info;

	if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
		return false;
	/* The loader may name the library through links and, in images where
	 * /lib is a link to /usr/lib, by the shorter path. */
	if (realpath(info.dli_fname, root) == NULL)
		return false;

	char *last = NULL;
	for (char *at = root; (at = strstr(at, "/usr/lib/")) != NULL; at++)
		last = at;
	root[last == NULL ? 0 : last - root] = '\0';
	return true;
}

bool sim_path(char out[SIM_PATH_MAX], const char *root, const char *relative)
{
	int n = snprintf(out, SIM_PATH_MAX, "%s/%s", root, relative);

	return n > 0 && n < SIM_PATH_MAX;
}

bool sim_gpu_visible(const char *root, const struct sim_gpu *gpu)
{
	char relative[32], path[SIM_PATH_MAX];
	struct stat st;

	snprintf(relative, sizeof(relative), "dev/nvidia%u", gpu->minor);
	return sim_path(path, root, relative) && stat(path, &st) == 0 &&
	       S_ISCHR(st.st_mode) &&
	       st.st_rdev == makedev(NVIDIA_MAJOR, gpu->minor);
}
