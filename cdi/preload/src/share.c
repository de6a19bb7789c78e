/*
 * The scan of the share directory, and which GPU each share is of.
 *
 * Whatever is wrong closes: a share that cannot be read closes its GPU, and an
 * entry that cannot be tied to a GPU closes them all.
 */
#include <dirent.h>
#include <limits.h>
#include <string.h>

#include "charge.h"
#include "fork.h"
#include "say.h"
#include "share.h"

struct aq_share aq_shares[AQ_SHARES_MAX];
struct aq_gpu aq_gpus[AQ_SHARES_MAX + 1];

static struct aq_lock load_lock;
static bool loaded;
static unsigned share_count, gpu_count;

/* Every GPU, once a share cannot be tied to one. */
static struct aq_gpu *all_closed;

static struct aq_gpu *gpu_find(const uint8_t uuid[16])
{
	for (unsigned i = 0; i < gpu_count; i++)
		if (memcmp(aq_gpus[i].uuid, uuid, 16) == 0)
			return &aq_gpus[i];
	return NULL;
}

static struct aq_gpu *gpu_add(const uint8_t uuid[16])
{
	struct aq_gpu *gpu = gpu_find(uuid);

	if (!gpu) {
		gpu = &aq_gpus[gpu_count];
		memcpy(gpu->uuid, uuid, 16);
		gpu->index = (uint8_t)gpu_count++;
	}
	return gpu;
}

static void close_gpu(struct aq_gpu *gpu, const char *name, const char *why)
{
	aq_say("no GPU memory from the GPU of share ", name, ": ", why);
	gpu->closed = true;
	gpu->limit = 0;
}

static void close_all(const char *name, const char *why)
{
	static const uint8_t no_uuid[16];

	aq_say("no GPU memory from any GPU: ", name, ": ", why);
	if (!all_closed) {
		all_closed = &aq_gpus[gpu_count];
		memcpy(all_closed->uuid, no_uuid, 16);
		all_closed->index = (uint8_t)gpu_count++;
		all_closed->closed = true;
	}
}

void aq_share_path(char path[AQ_PATH_MAX], const struct aq_share *share,
		   const char *file)
{
	strcpy(path, AQ_SHARES_DIR "/");
	strcat(path, share->name);
	strcat(path, file);
}

static const char *read_quota(struct aq_share *share)
{
	char path[AQ_PATH_MAX], text[AQ_QUOTA_BYTES_MAX + 1];
	size_t size = 0;
	ssize_t n = 0;
	int fd;

	aq_share_path(path, share, "/quota");
	fd = aq_sys_open(path, O_RDONLY);
	if (fd < 0)
		return "quota cannot be opened";
	while (size < sizeof(text) &&
	       (n = aq_sys_read(fd, text + size, sizeof(text) - size)) > 0)
		size += (size_t)n;
	aq_sys_close(fd);
	if (n < 0)
		return "quota cannot be read";
	if (size > AQ_QUOTA_BYTES_MAX)
		return "quota is too long";
	return aq_quota_parse(&share->quota, text, size);
}

/* Two entries with one usage file would take the same slot for their own. */
static const char *check_distinct(const struct aq_share *share)
{
	for (unsigned i = 0; i < share_count; i++)
		if (aq_shares[i].region &&
		    aq_shares[i].device == share->device &&
		    aq_shares[i].inode == share->inode)
			return "usage is another share's";
	return NULL;
}

static void add_limit(struct aq_share *share)
{
	struct aq_gpu *gpu = share->gpu;

	share->limit = share->quota.memory_bytes >> AQ_UNIT_SHIFT;
	if (share->limit > AQ_FIELD_MAX)
		share->limit = AQ_FIELD_MAX;
	gpu->limit += share->limit;
	gpu->memory_bytes += share->quota.memory_bytes;
}

static void load_share(struct aq_share *share, const uint8_t uuid[16])
{
	const char *why;

	why = read_quota(share);
	if (!why && memcmp(share->quota.gpu, uuid, 16) != 0) {
		close_all(share->name, "quota is of another GPU");
		return;
	}
	share->gpu = gpu_add(uuid);
	if (!why)
		why = aq_agent_open(share);
	if (!why)
		why = aq_region_open(share);
	if (!why)
		why = check_distinct(share);
	if (why) {
		close_gpu(share->gpu, share->name, why);
		return;
	}
	share->gpu->shares[share->gpu->share_count++] = (uint8_t)share_count++;
	if (!share->gpu->closed)
		add_limit(share);
}

static void load_entry(const char *name)
{
	const char *dot = strchr(name, '.');
	struct aq_share *share;
	uint8_t uuid[16];

	if (strlen(name) >= AQ_NAME_MAX || !dot ||
	    !aq_uuid_parse(uuid, name, (size_t)(dot - name))) {
		close_all(name, "not the name of a share");
		return;
	}
	if (share_count == AQ_SHARES_MAX) {
		close_all(name, "too many shares");
		return;
	}
	share = &aq_shares[share_count];
	memset(share, 0, sizeof(*share));
	memcpy(share->name, name, strlen(name));
	load_share(share, uuid);
}

/* In the order of names, which every process of every container shares: locks
 * of several regions are taken in it. */
static void load_directory(void)
{
	char names[AQ_SHARES_MAX + 1][NAME_MAX + 1];
	unsigned count = 0;
	struct dirent *entry;
	DIR *directory = opendir(AQ_SHARES_DIR);

	if (!directory) {
		close_all(AQ_SHARES_DIR, "cannot be opened");
		return;
	}
	while (count <= AQ_SHARES_MAX && (entry = readdir(directory))) {
		unsigned i = count;

		if (strcmp(entry->d_name, ".") == 0 ||
		    strcmp(entry->d_name, "..") == 0)
			continue;
		for (; i > 0 && strcmp(names[i - 1], entry->d_name) > 0; i--)
			strcpy(names[i], names[i - 1]);
		strcpy(names[i], entry->d_name);
		count++;
	}
	closedir(directory);
	if (count == 0)
		close_all(AQ_SHARES_DIR, "has no share");
	for (unsigned i = 0; i < count; i++)
		load_entry(names[i]);
}

void aq_shares_forked(void)
{
	aq_lock_reset(&load_lock);
	for (unsigned i = 0; i < share_count; i++)
		aq_charge_forked(&aq_shares[i]);
	for (unsigned i = 0; i < gpu_count; i++) {
		aq_lock_reset(&aq_gpus[i].short_lock);
		aq_lock_reset(&aq_gpus[i].release_lock);
	}
}

void aq_shares_load(void)
{
	AQ_KEEP_ERRNO;

	if (__atomic_load_n(&loaded, __ATOMIC_ACQUIRE))
		return;
	aq_fork_watch();
	aq_lock(&load_lock);
	if (!loaded) {
		share_count = 0;
		gpu_count = 0;
		all_closed = NULL;
		load_directory();
		__atomic_store_n(&loaded, true, __ATOMIC_RELEASE);
	}
	aq_unlock(&load_lock);
}

struct aq_gpu *aq_gpu_by_uuid(const uint8_t uuid[16])
{
	aq_shares_load();
	return all_closed ? all_closed : gpu_find(uuid);
}
