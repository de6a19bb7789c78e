#include "faults.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

static FILE *open_faults(const char *root)
{
	char path[SIM_PATH_MAX];

	return sim_path(path, root, "run/nvidia-sim/faults") ? fopen(path, "re") :
							       NULL;
}

int fault_of(const char *root, const char *function)
{
	char line[256], name[128];
	int code, found = 0;
	FILE *file = open_faults(root);

	if (file == NULL)
		return 0;
	while (found == 0 && fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "%127s error %d", name, &code) == 2 &&
		    strcmp(name, function) == 0)
			found = code;
	fclose(file);
	return found;
}

bool fault_gpu_lost(const char *root, unsigned gpu)
{
	char line[256];
	unsigned index;
	int end = 0;
	bool lost = false;
	FILE *file = open_faults(root);

	if (file == NULL)
		return false;
	while (!lost && fgets(line, sizeof(line), file) != NULL) {
		end = 0;
		sscanf(line, "gpu %u lost%n", &index, &end);
		lost = end > 0 && index == gpu;
	}
	fclose(file);
	return lost;
}

bool fault_xid(const char *root, unsigned skip, unsigned *gpu, unsigned *xid)
{
	char line[256];
	bool found = false;
	FILE *file = open_faults(root);

	if (file == NULL)
		return false;
	while (!found && fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "gpu %u xid %u", gpu, xid) == 2)
			found = skip-- == 0;
	fclose(file);
	return found;
}

/* Where the folder cannot be watched, it is looked at again after a moment. */
void fault_wait(const char *root, int milliseconds)
{
	char path[SIM_PATH_MAX];
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	struct pollfd watch = { .fd = fd, .events = POLLIN };
	bool watched = fd >= 0 && sim_path(path, root, "run/nvidia-sim") &&
		       inotify_add_watch(fd, path,
					 IN_MOVED_TO | IN_CLOSE_WRITE) >= 0;

	/* The file may have changed before the watch began, so no wait is
	 * longer than this. */
	if (milliseconds > 100)
		milliseconds = 100;
	poll(&watch, watched ? 1 : 0, milliseconds);
	if (fd >= 0)
		close(fd);
}
