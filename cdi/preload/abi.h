/*
 * What the preload library and the node plugin tell each other through files.
 *
 * This is the only definition of the three files of a share. The plugin, which
 * is Go without cgo, has its own constants; testdata/abi.golden, printed by a C
 * program from this header, is what its tests compare them with.
 *
 *   quota   text, read-only for containers: one "key value" a line
 *   agent   struct aq_agent, read-only for containers
 *   usage   struct aq_usage, the one file that a tenant can write; nobody
 *           trusts it for the safety of another tenant
 *
 * All numbers are in the byte order of the machine. A file belongs to one share
 * of one GPU, so nothing here has a device index.
 */
#ifndef AQ_ABI_H
#define AQ_ABI_H

#include <stdint.h>

/* quota: each key exactly once, in any order, every line ended by a newline.
 * Unknown keys are ignored within a version; an unknown version, or a key that
 * is missing, doubled or out of range, closes the GPU to allocations. */
#define AQ_QUOTA_VERSION 1
#define AQ_QUOTA_BYTES_MAX 4096
#define AQ_KEY_VERSION "version"	   /* 1 */
#define AQ_KEY_GPU "gpu"		   /* the UUID, as in the entry's name */
#define AQ_KEY_MEMORY "memory_bytes"	   /* decimal; whole MiB count */
#define AQ_KEY_CORE_PERCENT "core_percent" /* 0..100; 0: best effort */
#define AQ_KEY_CORE_POLICY "core_policy"   /* Fixed or Burst */
#define AQ_KEY_PRIORITY "priority"	   /* decimal, may be negative */

#define AQ_USAGE_MAGIC 0x55514c41u /* "ALQU" */
#define AQ_AGENT_MAGIC 0x41514c41u /* "ALQA" */
#define AQ_ABI 1u

#define AQ_HEADER_SIZE 4096u
#define AQ_SLOT_SIZE 256u
#define AQ_SLOT_COUNT 512u
#define AQ_USAGE_SIZE (AQ_HEADER_SIZE + AQ_SLOT_SIZE * AQ_SLOT_COUNT)
#define AQ_AGENT_SIZE 4096u

/* Record locks (fcntl, F_SETLK) on bytes of the usage file, far beyond its end.
 * Byte AQ_LOCK_BASE+i is held for life by the owner of slot i; the byte before
 * them serialises those who look for memory when it is short. */
#define AQ_LOCK_BASE (UINT64_C(1) << 30)
#define AQ_LOCK_REGION (AQ_LOCK_BASE - 1)

/*
 * A charge word: what one process holds, in one atomic word, so that a process
 * killed between any two instructions leaves it whole, and so that a process
 * which lost its slot cannot change its successor's figures.
 *
 *   63      44 43        22 21         0
 *   generation | pending    | used       in units of 1 MiB
 *
 * used is all that is charged; pending is the part of it which waits for the
 * driver's answer and may yet be given back. The generation changes whenever
 * the slot changes hands.
 */
#define AQ_UNIT_SHIFT 20u
#define AQ_FIELD_BITS 22u
#define AQ_FIELD_MAX ((UINT64_C(1) << AQ_FIELD_BITS) - 1)
#define AQ_PENDING_SHIFT 22u
#define AQ_GENERATION_SHIFT 44u
#define AQ_GENERATION_MAX ((UINT64_C(1) << 20) - 1)

/* The plugin fills the first five fields and the two marked so, and leaves the
 * rest zero. Fields that are written often have cache lines of their own. */
struct aq_usage_header {
	uint32_t magic;
	uint32_t abi;
	uint32_t hdr_size;  /* AQ_HEADER_SIZE */
	uint32_t slot_size; /* AQ_SLOT_SIZE */
	uint32_t nslots;    /* AQ_SLOT_COUNT */
	uint32_t hi;	    /* slots [0, hi) were ever used; only grows */
	uint64_t boot_id_hash; /* plugin: tells a file of an earlier boot */
	uint64_t created_mono; /* plugin: CLOCK_MONOTONIC, ns */
	uint64_t gate_until;   /* until then (ns) newcomers queue; 0: open */
	uint8_t spare0[16];

	uint64_t tat;	/* cores: the theoretical arrival time of the claim, ns */
	uint64_t tat_k; /* cores: the correction by which it was charged */
	uint8_t spare1[48];

	uint64_t denied_allocs;
	uint64_t throttle_ns; /* cores */
	uint64_t launches;    /* cores */
	uint64_t charged_ns;  /* cores: GPU time charged, by estimate, before k */
	uint8_t spare2[32];

	uint8_t spare[AQ_HEADER_SIZE - 192];
};

struct aq_usage_slot {
	uint64_t charge; /* a charge word */
	uint64_t peak;	 /* bytes */
	uint64_t allocs; /* granted */
	uint64_t denied;
	uint64_t pools;	 /* bytes of used that are reserved by memory pools */
	uint64_t ctx;	 /* bytes of used that contexts cost */
	uint8_t spare0[16];

	uint64_t throttled_ns; /* cores */
	uint64_t launches;     /* cores */
	uint64_t t_last;       /* cores: last launch, ns */
	uint8_t spare1[40];

	/* For people; liveness is the lock, not the pid. */
	uint32_t pid; /* in the process's own pid namespace */
	uint32_t spare2;
	uint64_t pidns_ino;
	uint64_t start_ticks; /* since boot, field 22 of /proc/<pid>/stat */
	uint8_t spare3[104];
};

struct aq_usage {
	struct aq_usage_header header;
	struct aq_usage_slot slots[AQ_SLOT_COUNT];
};

/*
 * Written by the plugin under seq: odd while it writes. Until the first
 * measurement seq and t_mono are 0.
 *
 * k_permille holds while t_mono is younger than AQ_AGENT_FRESH_NS, else there is
 * no correction. core_permille is what the share may use of the GPU's time at
 * the moment: for core_percent 0 it holds until the next write; more than
 * core_percent (Burst) holds while t_mono is younger than AQ_AGENT_LENT_NS.
 */
#define AQ_AGENT_FRESH_NS UINT64_C(10000000000)
#define AQ_AGENT_LENT_NS UINT64_C(2000000000)

struct aq_agent {
	uint32_t magic;
	uint32_t abi;
	uint64_t seq;
	uint64_t t_mono;     /* CLOCK_MONOTONIC of the last write, ns */
	uint32_t k_permille; /* cost correction; 1000: none; 0: not measured */
	uint32_t util_permille; /* of the GPU's time, used by the share lately */
	uint64_t actual_bytes;	/* of the whole share, by NVML */
	uint32_t core_permille; /* 0: as in quota */
	uint32_t context_mib;	/* a context's charge until it was measured */
	uint8_t spare0[16];

	/* Of the process in that slot, by NVML: what it holds beyond what its
	 * allocations are charged, such as contexts and modules. 0: not
	 * measured. It is about the process of that generation (low 8 bits). */
	uint32_t slot_overhead_mib[AQ_SLOT_COUNT];
	uint8_t slot_generation[AQ_SLOT_COUNT];
	uint8_t spare[AQ_AGENT_SIZE - 64 - AQ_SLOT_COUNT * 5];
};

#define AQ_OFFSET(type, field, value) \
	_Static_assert(__builtin_offsetof(struct type, field) == (value), \
		       #type "." #field)

_Static_assert(sizeof(struct aq_usage_header) == AQ_HEADER_SIZE, "header");
_Static_assert(sizeof(struct aq_usage_slot) == AQ_SLOT_SIZE, "slot");
_Static_assert(sizeof(struct aq_usage) == AQ_USAGE_SIZE, "usage");
_Static_assert(sizeof(struct aq_agent) == AQ_AGENT_SIZE, "agent");

AQ_OFFSET(aq_usage_header, magic, 0);
AQ_OFFSET(aq_usage_header, abi, 4);
AQ_OFFSET(aq_usage_header, hdr_size, 8);
AQ_OFFSET(aq_usage_header, slot_size, 12);
AQ_OFFSET(aq_usage_header, nslots, 16);
AQ_OFFSET(aq_usage_header, hi, 20);
AQ_OFFSET(aq_usage_header, boot_id_hash, 24);
AQ_OFFSET(aq_usage_header, created_mono, 32);
AQ_OFFSET(aq_usage_header, gate_until, 40);
AQ_OFFSET(aq_usage_header, tat, 64);
AQ_OFFSET(aq_usage_header, tat_k, 72);
AQ_OFFSET(aq_usage_header, denied_allocs, 128);
AQ_OFFSET(aq_usage_header, throttle_ns, 136);
AQ_OFFSET(aq_usage_header, launches, 144);
AQ_OFFSET(aq_usage_header, charged_ns, 152);

AQ_OFFSET(aq_usage_slot, charge, 0);
AQ_OFFSET(aq_usage_slot, peak, 8);
AQ_OFFSET(aq_usage_slot, allocs, 16);
AQ_OFFSET(aq_usage_slot, denied, 24);
AQ_OFFSET(aq_usage_slot, pools, 32);
AQ_OFFSET(aq_usage_slot, ctx, 40);
AQ_OFFSET(aq_usage_slot, throttled_ns, 64);
AQ_OFFSET(aq_usage_slot, launches, 72);
AQ_OFFSET(aq_usage_slot, t_last, 80);
AQ_OFFSET(aq_usage_slot, pid, 128);
AQ_OFFSET(aq_usage_slot, pidns_ino, 136);
AQ_OFFSET(aq_usage_slot, start_ticks, 144);

AQ_OFFSET(aq_agent, magic, 0);
AQ_OFFSET(aq_agent, abi, 4);
AQ_OFFSET(aq_agent, seq, 8);
AQ_OFFSET(aq_agent, t_mono, 16);
AQ_OFFSET(aq_agent, k_permille, 24);
AQ_OFFSET(aq_agent, util_permille, 28);
AQ_OFFSET(aq_agent, actual_bytes, 32);
AQ_OFFSET(aq_agent, core_permille, 40);
AQ_OFFSET(aq_agent, context_mib, 44);
AQ_OFFSET(aq_agent, slot_overhead_mib, 64);
AQ_OFFSET(aq_agent, slot_generation, 2112);

#endif
