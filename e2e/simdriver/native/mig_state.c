/* The file of the cards' division: mapping, reading and locking it. */
#include "mig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the file is locked it stays open: to close it would drop the lock. */
static struct {
	pthread_mutex_t mutex; /* record locks do not tell threads apart */
	struct mig_file *map;
	int fd;
	bool writable;
} self = { PTHREAD_MUTEX_INITIALIZER, NULL, -1, false };

static bool set_lock(short type)
{
	struct flock lock = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = 0,
		.l_len = 1,
	};
	int rc;

	do
		rc = fcntl(self.fd, F_SETLKW, &lock);
	while (rc < 0 && errno == EINTR);
	return rc == 0;
}

/* The file begins empty. Its header is written last, so one without it is begun
 * again. */
static bool initialise(void)
{
	uint32_t head[3] = { 0 };
	bool good = true;

	if (!set_lock(F_WRLCK))
		return false;
	if (pread(self.fd, head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    head[0] == 0) {
		head[0] = MIG_MAGIC;
		head[1] = MIG_VERSION;
		head[2] = sizeof(struct mig_file);
		good = ftruncate(self.fd, sizeof(struct mig_file)) == 0 &&
		       pwrite(self.fd, head, sizeof(head), 0) ==
			       (ssize_t)sizeof(head);
	}
	set_lock(F_UNLCK);
	return good;
}

static bool map_file(int fd, bool writable)
{
	int protection = PROT_READ | (writable ? PROT_WRITE : 0);
	void *at = mmap(NULL, sizeof(struct mig_file), protection, MAP_SHARED,
			fd, 0);

	if (at == MAP_FAILED)
		return false;
	const struct mig_file *file = at;
	if (file->magic != MIG_MAGIC || file->version != MIG_VERSION ||
	    file->size != sizeof(*file)) {
		munmap(at, sizeof(*file));
		return false;
	}
	self.map = at;
	return true;
}

/* Nobody has divided a card yet: there is nothing to read, now. */
static bool is_empty(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_size == 0;
}

static bool open_locked(const char *root)
{
	if (self.map != NULL)
		return true;
	if (self.fd < 0)
		self.fd = sim_state_open(root, "mig", &self.writable);
	if (self.fd < 0)
		return false;
	if (self.writable)
		return initialise() && map_file(self.fd, true);
	return is_empty(self.fd) || map_file(self.fd, false);
}

bool mig_open(const char *root)
{
	pthread_mutex_lock(&self.mutex);
	bool opened = open_locked(root);
	pthread_mutex_unlock(&self.mutex);
	return opened;
}

bool mig_open_to_read(const char *root)
{
	char path[SIM_PATH_MAX];

	if (self.map != NULL)
		return true;
	if (!sim_path(path, root, "run/nvidia-sim/mig"))
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool opened = is_empty(fd) || map_file(fd, false);
	close(fd);
	return opened;
}

static uint64_t serial_of(const uint64_t *serial)
{
	return __atomic_load_n(serial, __ATOMIC_ACQUIRE);
}

static void read_compute(const struct mig_compute *from,
			 struct mig_compute *to)
{
	do {
		to->serial = serial_of(&from->serial);
		to->profile = from->profile;
		to->start = from->start;
		to->size = from->size;
		memcpy(to->uuid, from->uuid, sizeof(to->uuid));
		atomic_thread_fence(memory_order_acquire);
	} while (to->serial != 0 && to->serial != serial_of(&from->serial));
}

static void read_instance(const struct mig_instance *from,
			  struct mig_instance *to)
{
	do {
		to->serial = serial_of(&from->serial);
		to->profile = from->profile;
		to->start = from->start;
		to->size = from->size;
		for (unsigned i = 0; i < MIG_COMPUTES; i++)
			read_compute(&from->computes[i], &to->computes[i]);
		atomic_thread_fence(memory_order_acquire);
	} while (to->serial != 0 && to->serial != serial_of(&from->serial));
}

void mig_read(unsigned card, struct mig_card *copy)
{
	memset(copy, 0, sizeof(*copy));
	if (self.map == NULL)
		return;
	const struct mig_card *from = &self.map->cards[card];
	copy->current = __atomic_load_n(&from->current, __ATOMIC_ACQUIRE);
	copy->pending = __atomic_load_n(&from->pending, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < MIG_INSTANCES; i++)
		read_instance(&from->instances[i], &copy->instances[i]);
}

struct mig_file *mig_lock(void)
{
	pthread_mutex_lock(&self.mutex);
	if (self.map != NULL && self.writable && set_lock(F_WRLCK))
		return self.map;
	pthread_mutex_unlock(&self.mutex);
	return NULL;
}

void mig_unlock(void)
{
	set_lock(F_UNLCK);
	pthread_mutex_unlock(&self.mutex);
}

void mig_uuid_text(const unsigned char uuid[16], char text[MIG_UUID_TEXT])
{
	int n = sprintf(text, "MIG-");

	for (unsigned i = 0; i < 16; i++)
		n += sprintf(text + n, "%s%02x",
			     i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			     uuid[i]);
}
