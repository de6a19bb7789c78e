/*
 * What the node's agent says of a share (abi.h): how dear launches are, how
 * much of the GPU's time the share may use now, what contexts cost. It is
 * written by another process at any moment, so it is read under its sequence,
 * and a reader never waits for the writer.
 */
#ifndef AQ_AGENT_H
#define AQ_AGENT_H

#include <stdbool.h>

#include "../abi.h"

struct aq_share;

struct aq_agent_view {
	uint64_t seq;	 /* of the page when it was read */
	uint64_t t_mono; /* ns; 0: nothing was measured yet */
	uint32_t k_permille;
	uint32_t core_permille;
	uint32_t context_mib;
};

/* Maps the agent file. NULL, or what is wrong with it. */
const char *aq_agent_open(struct aq_share *share);

/* The page's sequence, to be compared with a view's: the cheap question whether
 * there is anything new to read. */
uint64_t aq_agent_seq(const struct aq_share *share);

/* A whole state of the page. False: the agent is writing just now, and the view
 * is the last one that was had. */
bool aq_agent_read(struct aq_share *share, struct aq_agent_view *view);

/* MiB that the process in the slot holds beyond what its allocations are
 * charged. 0: not measured, or not to be read just now. generation: the whole
 * one, of the charge word. */
uint32_t aq_agent_overhead(const struct aq_share *share, unsigned slot,
			   uint64_t generation);

/* In a forked child. */
void aq_agent_forked(struct aq_share *share);

#endif
