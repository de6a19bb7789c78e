/*
 * Slots are owned by record locks: whoever holds byte AQ_LOCK_BASE+i owns slot
 * i, and nobody else writes its generation. The kernel drops the lock however
 * the process ends, so a slot whose byte can be locked belongs to nobody alive.
 *
 * A record lock belongs to the process and the file: closing any descriptor of
 * the file drops all of them. So the file is opened once, under a high number
 * where no program looks for its own, and never closed. It may still happen,
 * by closefrom(); then descriptor_ours() finds out when memory is short, or the
 * generation of the slot when somebody else has taken it.
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "region.h"
#include "say.h"

#define HIGH_DESCRIPTOR 900

static int move_high(int fd)
{
	struct rlimit limit = { 0 };
	int high = aq_sys_fcntl(fd, F_DUPFD_CLOEXEC,
				(void *)(uintptr_t)HIGH_DESCRIPTOR);

	if (high < 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
	    limit.rlim_cur > 32 && limit.rlim_cur <= HIGH_DESCRIPTOR)
		high = aq_sys_fcntl(fd, F_DUPFD_CLOEXEC,
				    (void *)(uintptr_t)(limit.rlim_cur - 16));
	if (high < 0)
		return fd;
	aq_sys_close(fd); /* no lock is held yet */
	return high;
}

static const char *check_header(const struct aq_usage_header *header)
{
	if (header->magic != AQ_USAGE_MAGIC)
		return "usage is not an accounting region";
	if (header->abi != AQ_ABI)
		return "usage is of another version";
	if (header->hdr_size != AQ_HEADER_SIZE ||
	    header->slot_size != AQ_SLOT_SIZE ||
	    header->nslots != AQ_SLOT_COUNT)
		return "usage has an unknown layout";
	return NULL;
}

static const char *map_usage(struct aq_share *share, int fd)
{
	const char *wrong;
	struct stat st;
	void *region;

	if (!aq_sys_fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "usage is not a file";
	if (st.st_size != AQ_USAGE_SIZE)
		return "usage has the wrong size";
	region = mmap(NULL, AQ_USAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
		      fd, 0);
	if (region == MAP_FAILED)
		return "usage cannot be mapped";
	wrong = check_header(region);
	if (wrong) {
		munmap(region, AQ_USAGE_SIZE);
		return wrong;
	}
	share->region = region;
	share->device = st.st_dev;
	share->inode = st.st_ino;
	return NULL;
}

const char *aq_region_open(struct aq_share *share)
{
	char path[AQ_PATH_MAX];
	const char *wrong;
	int fd;

	aq_share_path(path, share, "/usage");
	fd = aq_sys_open(path, O_RDWR | O_NOFOLLOW);
	if (fd < 0)
		return "usage cannot be opened for writing";
	wrong = map_usage(share, fd);
	if (wrong) {
		aq_sys_close(fd);
		return wrong;
	}
	share->fd = move_high(fd);
	share->place = aq_place(0, 0, AQ_NO_SLOT);
	/* What an earlier container of the claim left is not in use. */
	aq_region_reap(share);
	return NULL;
}

static bool is_ours(const struct aq_share *share, int fd)
{
	struct stat st;

	return fd >= 0 && aq_sys_fstat(fd, &st) &&
	       st.st_dev == share->device && st.st_ino == share->inode;
}

static bool lock_byte(int fd, uint64_t byte, short type)
{
	struct flock lock = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)byte,
		.l_len = 1,
	};

	return aq_sys_fcntl(fd, F_SETLK, &lock) == 0;
}

/* Whether share->fd is the region's, opened again if the host closed it: our
 * locks went with it. The slot may still be ours; then it is locked again. */
static bool descriptor_ours(struct aq_share *share)
{
	unsigned slot = aq_place_slot(share->place);
	char path[AQ_PATH_MAX];
	int fd;

	if (AQ_LIKELY(is_ours(share, share->fd)))
		return true;
	share->fd = -1;
	aq_share_path(path, share, "/usage");
	fd = aq_sys_open(path, O_RDWR | O_NOFOLLOW);
	if (fd < 0)
		return false;
	if (!is_ours(share, fd)) {
		aq_sys_close(fd);
		return false;
	}
	share->fd = move_high(fd);
	if (slot != AQ_NO_SLOT)
		lock_byte(share->fd, AQ_LOCK_BASE + slot, F_WRLCK);
	return true;
}

uint64_t aq_region_pidns(void)
{
	AQ_KEEP_ERRNO;
	char text[64];
	uint64_t inode = 0;
	ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", text,
			    sizeof(text));

	for (ssize_t i = 0; i < n; i++) /* "pid:[4026531836]" */
		if (text[i] >= '0' && text[i] <= '9')
			inode = inode * 10 + (uint64_t)(text[i] - '0');
	return inode;
}

/* For people. A failure leaves zeros. */
static void write_identity(struct aq_usage_slot *slot)
{
	char text[1024], *field;
	ssize_t n;
	int fd;

	slot->pid = (uint32_t)syscall(SYS_getpid);
	slot->pidns_ino = aq_region_pidns();
	slot->start_ticks = 0;
	fd = aq_sys_open("/proc/self/stat", O_RDONLY);
	if (fd < 0)
		return;
	n = aq_sys_read(fd, text, sizeof(text) - 1);
	aq_sys_close(fd);
	text[n > 0 ? n : 0] = '\0';
	field = strrchr(text, ')'); /* ends field 2, whatever the name holds */
	for (int i = 2; field && i < 22; i++)
		field = strchr(field + 1, ' ');
	for (field = field ? field + 1 : text; *field >= '0' && *field <= '9';
	     field++)
		slot->start_ticks = slot->start_ticks * 10 +
				    (uint64_t)(*field - '0');
}

static void raise_hi(struct aq_share *share, uint32_t hi)
{
	uint32_t *shared = &share->region->header.hi;
	uint32_t old = __atomic_load_n(shared, __ATOMIC_SEQ_CST);

	while (old < hi && !__atomic_compare_exchange_n(shared, &old, hi, false,
							__ATOMIC_SEQ_CST,
							__ATOMIC_SEQ_CST))
		;
}

/* The lowest slot that nobody alive owns, so that there is little to add up.
 * The slot is emptied; a process killed here leaves an empty, unlocked one. */
static unsigned claim_slot(struct aq_share *share, uint64_t *generation)
{
	if (!descriptor_ours(share))
		return AQ_NO_SLOT;
	for (unsigned i = 0; i < AQ_SLOT_COUNT; i++) {
		struct aq_usage_slot *slot = aq_region_slot(share, i);

		if (!lock_byte(share->fd, AQ_LOCK_BASE + i, F_WRLCK))
			continue;
		*generation = aq_next_generation(
			aq_word_generation(aq_region_word(share, i)));
		__atomic_store_n(&slot->charge, aq_word(*generation, 0, 0),
				 __ATOMIC_SEQ_CST);
		memset((char *)slot + sizeof(slot->charge), 0,
		       sizeof(*slot) - sizeof(slot->charge));
		slot->pools = share->pools;
		slot->ctx = share->contexts;
		write_identity(slot);
		raise_hi(share, i + 1);
		return i;
	}
	return AQ_NO_SLOT;
}

/* Starts the mirror's next epoch with what it holds: whoever changed it before
 * is in it, whoever comes later sees the new epoch and waits for the place. */
static uint64_t turn_mirror(struct aq_share *share, uint64_t epoch)
{
	uint64_t old = __atomic_load_n(&share->mirror, __ATOMIC_SEQ_CST), new;

	do
		new = aq_word(epoch, aq_word_pending(old), aq_word_used(old));
	while (!__atomic_compare_exchange_n(&share->mirror, &old, new, false,
					    __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST));
	return new;
}

static void say_no_slot(struct aq_share *share)
{
	static bool said;

	if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
		aq_say("no GPU memory from share ", share->name,
		       ": no free slot in its usage file");
}

bool aq_region_move(struct aq_share *share, uint64_t place)
{
	AQ_KEEP_ERRNO;
	uint64_t generation = 0, epoch, word;
	bool placed = true;
	unsigned slot;

	aq_lock(&share->slot_lock);
	if (share->place == place) {
		slot = claim_slot(share, &generation);
		epoch = aq_next_generation(aq_place_epoch(place));
		word = turn_mirror(share, epoch);
		placed = slot != AQ_NO_SLOT;
		if (placed)
			__atomic_store_n(&aq_region_slot(share, slot)->charge,
					 aq_word(generation,
						 aq_word_pending(word),
						 aq_word_used(word)),
					 __ATOMIC_SEQ_CST);
		else
			say_no_slot(share);
		__atomic_store_n(&share->place,
				 aq_place(epoch, generation, slot),
				 __ATOMIC_SEQ_CST);
	}
	aq_unlock(&share->slot_lock);
	return placed;
}

void aq_region_settle(struct aq_share *share)
{
	aq_lock(&share->slot_lock);
	aq_unlock(&share->slot_lock);
}

/* Ours is not locked against ourselves. A descriptor that the host closed tells
 * nothing; then the slot may be anybody's. */
bool aq_region_alive(const struct aq_share *share, unsigned slot)
{
	AQ_KEEP_ERRNO;
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)(AQ_LOCK_BASE + slot),
		.l_len = 1,
	};

	return slot == aq_place_slot(__atomic_load_n(&share->place,
						     __ATOMIC_SEQ_CST)) ||
	       (is_ours(share, share->fd) &&
		aq_sys_fcntl(share->fd, F_GETLK, &lock) == 0 &&
		lock.l_type != F_UNLCK);
}

/* The lock on the byte keeps a new owner out while the slot is emptied. */
static void reap_slot(struct aq_share *share, unsigned i)
{
	uint64_t word;

	if (!lock_byte(share->fd, AQ_LOCK_BASE + i, F_WRLCK))
		return; /* alive */
	word = aq_region_word(share, i);
	__atomic_store_n(&aq_region_slot(share, i)->charge,
			 aq_word(aq_next_generation(aq_word_generation(word)),
				 0, 0),
			 __ATOMIC_SEQ_CST);
	lock_byte(share->fd, AQ_LOCK_BASE + i, F_UNLCK);
}

/* Our own slot is left out: we could lock it, and would then unlock it. */
void aq_region_reap(struct aq_share *share)
{
	aq_lock(&share->slot_lock);
	if (descriptor_ours(share)) {
		unsigned own = aq_place_slot(share->place);

		for (unsigned i = 0; i < aq_region_hi(share); i++)
			if (i != own && (aq_region_word(share, i) &
					 (aq_word(1, 0, 0) - 1)))
				reap_slot(share, i);
	}
	aq_unlock(&share->slot_lock);
}

#define REGION_LOCK_PATIENCE AQ_NS_PER_S
#define REGION_LOCK_NAP 20000

bool aq_region_lock(struct aq_share *share)
{
	uint64_t deadline = aq_now() + REGION_LOCK_PATIENCE;

	while (is_ours(share, share->fd)) {
		if (lock_byte(share->fd, AQ_LOCK_REGION, F_WRLCK))
			return true;
		if (aq_now() > deadline)
			return false;
		aq_sys_nap(REGION_LOCK_NAP);
	}
	return false;
}

void aq_region_unlock(struct aq_share *share)
{
	if (is_ours(share, share->fd))
		lock_byte(share->fd, AQ_LOCK_REGION, F_UNLCK);
}
