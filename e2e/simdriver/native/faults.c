#include "faults.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

static FILE *open_faults(const char *root)
{
	char path[SIM_PATH_MAX];

	return sim_path(path, root, "run/nvidia-sim/faults") ? fopen(path, "re") :
							       NULL;
}

/* Calls that are counted, since the file was last changed. */
static struct {
	pthread_mutex_t mutex;
	struct timespec changed;
	ino_t inode;
	unsigned count;
	struct {
		char name[96];
		unsigned call, seen;
	} lines[16];
} counted = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static void begin_anew(FILE *file)
{
	struct stat st;

	if (fstat(fileno(file), &st) != 0 ||
	    (st.st_ino == counted.inode &&
	     st.st_mtim.tv_sec == counted.changed.tv_sec &&
	     st.st_mtim.tv_nsec == counted.changed.tv_nsec))
		return;
	counted.inode = st.st_ino;
	counted.changed = st.st_mtim;
	counted.count = 0;
}

/* Whether this is the call that is to fail. */
static bool is_call(FILE *file, const char *name, unsigned call)
{
	unsigned i = 0;
	bool due = false;

	pthread_mutex_lock(&counted.mutex);
	begin_anew(file);
	while (i < counted.count && (counted.lines[i].call != call ||
				     strcmp(counted.lines[i].name, name) != 0))
		i++;
	if (i == counted.count && i < 16) {
		counted.count++;
		snprintf(counted.lines[i].name, sizeof(counted.lines[i].name),
			 "%s", name);
		counted.lines[i].call = call;
		counted.lines[i].seen = 0;
	}
	if (i < 16)
		due = ++counted.lines[i].seen == call;
	pthread_mutex_unlock(&counted.mutex);
	return due;
}

int fault_of(const char *root, const char *function)
{
	char line[256], name[96];
	unsigned call;
	int code, found = 0;
	FILE *file = open_faults(root);

	if (file == NULL)
		return 0;
	while (found == 0 && fgets(line, sizeof(line), file) != NULL) {
		if (sscanf(line, "%95s", name) != 1 ||
		    strcmp(name, function) != 0)
			continue;
		if (sscanf(line, "%*s error %d", &code) == 1 ||
		    (sscanf(line, "%*s call %u error %d", &call, &code) == 2 &&
		     is_call(file, name, call)))
			found = code;
	}
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

bool fault_event(const char *root, unsigned skip, struct fault_event *event)
{
	char line[256];
	bool found = false;
	FILE *file = open_faults(root);

	if (file == NULL)
		return false;
	while (!found && fgets(line, sizeof(line), file) != NULL) {
		*event = (struct fault_event){ .type = FAULT_EVENT_XID };
		if (sscanf(line, "gpu %u xid %u", &event->gpu, &event->data) ==
			    2 ||
		    sscanf(line, "gpu %u event %u", &event->gpu,
			   &event->type) == 2)
			found = skip-- == 0;
	}
	fclose(file);
	return found;
}

unsigned fault_number(const char *root, unsigned gpu, const char *key)
{
	char line[256], name[32];
	unsigned index, number, found = 0;
	FILE *file = open_faults(root);

	if (file == NULL)
		return 0;
	while (fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "gpu %u %31s %u", &index, name, &number) ==
			    3 &&
		    index == gpu && strcmp(name, key) == 0)
			found = number;
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
