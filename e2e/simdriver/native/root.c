/* The driver root and the device nodes under it. */
#include "sim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195 /* character device number of /dev/nvidia<minor> */
#define CAPS_MAJOR 237	 /* of /dev/nvidia-caps, as ../root.go makes them */

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

static bool node_visible(const char *root, const char *relative, dev_t number)
{
	char path[SIM_PATH_MAX];
	struct stat st;

	return sim_path(path, root, relative) && stat(path, &st) == 0 &&
	       S_ISCHR(st.st_mode) && st.st_rdev == number;
}

bool sim_gpu_visible(const char *root, const struct sim_gpu *gpu)
{
	char relative[32];

	snprintf(relative, sizeof(relative), "dev/nvidia%u", gpu->minor);
	return node_visible(root, relative, makedev(NVIDIA_MAJOR, gpu->minor));
}

bool sim_cap_visible(const char *root, unsigned minor)
{
	char relative[64];

	snprintf(relative, sizeof(relative), "dev/nvidia-caps/nvidia-cap%u",
		 minor);
	return node_visible(root, relative, makedev(CAPS_MAJOR, minor));
}

static bool same_file(int one, int other)
{
	struct stat a, b;

	return fstat(one, &a) == 0 && fstat(other, &b) == 0 &&
	       a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int sim_state_open(const char *root, const char *name, bool *writable)
{
	char relative[64], path[SIM_PATH_MAX];

	snprintf(relative, sizeof(relative), "run/nvidia-sim/%s", name);
	if (!sim_path(path, root, relative))
		return -1;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	*writable = fd >= 0;
	if (fd >= 0 || (errno != EROFS && errno != EACCES))
		return fd;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || !sim_path(path, "", relative))
		return fd;
	int other = open(path, O_RDWR | O_CLOEXEC);
	if (other < 0)
		return fd;
	*writable = same_file(fd, other);
	close(*writable ? fd : other); /* no lock is held yet */
	return *writable ? other : fd;
}
