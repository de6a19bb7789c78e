/*
 * Reading the agent page. The agent makes its sequence odd, writes, and makes
 * it even again. One that was killed in between leaves it odd until the next
 * one starts; nobody here waits for that.
 */
#include <sys/mman.h>

#include "agent.h"
#include "share.h"

#define TRIES 4

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

static const char *check_page(const struct aq_agent *page)
{
	if (page->magic != AQ_AGENT_MAGIC)
		return "agent is not an agent page";
	if (page->abi != AQ_ABI)
		return "agent is of another version";
	return NULL;
}

static const char *map_agent(struct aq_share *share, int fd)
{
	const char *wrong;
	struct stat st;
	void *page;

	if (!aq_sys_fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "agent is not a file";
	if (st.st_size != AQ_AGENT_SIZE)
		return "agent has the wrong size";
	page = mmap(NULL, AQ_AGENT_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return "agent cannot be mapped";
	wrong = check_page(page);
	if (wrong) {
		munmap(page, AQ_AGENT_SIZE);
		return wrong;
	}
	share->agent = page;
	return NULL;
}

/* Each field is whole by itself, whatever the writer is doing. */
static struct aq_agent_view read_fields(const struct aq_agent *page)
{
	return (struct aq_agent_view){
		.t_mono = LOAD(page->t_mono),
		.k_permille = LOAD(page->k_permille),
		.core_permille = LOAD(page->core_permille),
		.context_mib = LOAD(page->context_mib),
	};
}

/* The sequence before the fields are read, and whether it is the same after. */
static uint64_t begin(const struct aq_agent *page)
{
	return __atomic_load_n(&page->seq, __ATOMIC_ACQUIRE);
}

static bool is_whole(const struct aq_agent *page, uint64_t seq)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return seq % 2 == 0 && LOAD(page->seq) == seq;
}

static bool read_whole(const struct aq_agent *page, struct aq_agent_view *view)
{
	for (unsigned i = 0; i < TRIES; i++) {
		uint64_t seq = begin(page);

		*view = read_fields(page);
		view->seq = seq;
		if (is_whole(page, seq))
			return true;
	}
	return false;
}

const char *aq_agent_open(struct aq_share *share)
{
	char path[AQ_PATH_MAX];
	const char *wrong;
	int fd;

	aq_share_path(path, share, "/agent");
	fd = aq_sys_open(path, O_RDONLY);
	if (fd < 0)
		return "agent cannot be opened";
	wrong = map_agent(share, fd);
	aq_sys_close(fd);
	/* Until a whole state is seen, fields of two are better than none: the
	 * cost of a context is among them. No sequence: read again. */
	if (!wrong && !read_whole(share->agent, &share->agent_seen)) {
		share->agent_seen = read_fields(share->agent);
		share->agent_seen.seq = 1;
	}
	return wrong;
}

AQ_HOT uint64_t aq_agent_seq(const struct aq_share *share)
{
	return begin(share->agent);
}

bool aq_agent_read(struct aq_share *share, struct aq_agent_view *view)
{
	bool whole = read_whole(share->agent, view);

	aq_lock(&share->agent_lock);
	if (!whole)
		*view = share->agent_seen;
	else
		share->agent_seen = *view;
	aq_unlock(&share->agent_lock);
	return whole;
}

uint32_t aq_agent_overhead(const struct aq_share *share, unsigned slot,
			   uint64_t generation)
{
	const struct aq_agent *page = share->agent;

	for (unsigned i = 0; slot < AQ_SLOT_COUNT && i < TRIES; i++) {
		uint64_t seq = begin(page);
		uint32_t mib = LOAD(page->slot_overhead_mib[slot]);
		uint8_t of = LOAD(page->slot_generation[slot]);

		if (is_whole(page, seq))
			return of == (generation & 0xff) ? mib : 0;
	}
	return 0;
}

void aq_agent_forked(struct aq_share *share)
{
	aq_lock_reset(&share->agent_lock);
}
