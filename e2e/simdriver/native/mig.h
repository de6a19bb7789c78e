/*
 * How cards are divided: each one's MIG mode, its GPU instances and the compute
 * instances in them.
 *
 * It is one file, mapped by every process that uses the simulated driver, in
 * whatever container. Changes are made under one record lock, which the kernel
 * drops when its holder dies. An instance is there from the moment that its
 * serial, a single word, is written: it is filled in before, and nothing but
 * the serial is taken back when it is destroyed. So whenever a process is
 * killed, an instance is there or it is not, and readers need no lock.
 *
 * Results are numbers of nvmlReturn_t, which all users of this can tell.
 */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include "sim.h"

#define MIG_MAGIC 0x5349474du /* "MGIS" */
#define MIG_VERSION 1u
#define MIG_INSTANCES 15 /* gi0 to gi14 */
#define MIG_COMPUTES 8	 /* ci0 to ci7 */
#define MIG_ANYWHERE (-1)

enum mig_result {
	MIG_OK = 0,
	MIG_INVALID = 2,
	MIG_NOT_SUPPORTED = 3,
	MIG_NO_PERMISSION = 4,
	MIG_NOT_FOUND = 6,
	MIG_RESET_REQUIRED = 16,
	MIG_IN_USE = 19,
	MIG_FULL = 23, /* NVML_ERROR_INSUFFICIENT_RESOURCES */
	MIG_UNKNOWN = 999,
};

/* Its number is its place in the instance. */
struct mig_compute {
	uint64_t serial; /* never used twice; 0: not there */
	uint32_t profile; /* NVML_COMPUTE_INSTANCE_PROFILE_* */
	uint32_t start, size;
	uint32_t unused;
	unsigned char uuid[16];
};

/* Its number is its place in the card. */
struct mig_instance {
	uint64_t serial; /* never used twice; 0: not there */
	uint32_t profile; /* NVML_GPU_INSTANCE_PROFILE_* */
	uint32_t start, size;
	uint32_t unused;
	struct mig_compute computes[MIG_COMPUTES];
};

struct mig_card {
	uint32_t current, pending; /* mode; 1: enabled */
	struct mig_instance instances[MIG_INSTANCES];
};

struct mig_file {
	uint32_t magic, version, size, unused;
	uint64_t serials; /* given out so far */
	struct mig_card cards[SIM_MAX_GPUS];
};

/* mig_state.c */

/* Maps the file. A second call keeps what the first one opened; false: it cannot
 * be read. */
bool mig_open(const char *root);
/* For a process that never changes it, and holds no descriptor for that. */
bool mig_open_to_read(const char *root);
/* A copy in which no instance is half that of one and half of its successor. */
void mig_read(unsigned card, struct mig_card *copy);
/* The file, which nobody else changes until unlock; NULL: may only be read. */
struct mig_file *mig_lock(void);
void mig_unlock(void);
/* "MIG-" and a UUID. */
#define MIG_UUID_TEXT 41
void mig_uuid_text(const unsigned char uuid[16], char text[MIG_UUID_TEXT]);

/* mig_rules.c: what a card has room for. */

const struct sim_mig_profile *mig_profile_at(const struct sim_gpu *gpu,
					     unsigned index);
const struct sim_mig_profile *mig_profile_of_id(const struct sim_gpu *gpu,
						unsigned id);
/* MIG_OK, MIG_INVALID for a place that the profile never has, or MIG_FULL. */
int mig_fits(const struct sim_gpu *gpu, const struct mig_card *card,
	     const struct sim_mig_profile *profile, unsigned start);
/* How many more of the profile there is room for. */
unsigned mig_capacity(const struct sim_gpu *gpu, const struct mig_card *card,
		      const struct sim_mig_profile *profile);
/* The first free number for an instance of the profile, or -1. */
int mig_free_number(const struct sim_gpu *gpu, const struct mig_card *card,
		    const struct sim_mig_profile *profile);

/* A size of compute instance in an instance of some profile. Its index is its
 * ID too. */
struct mig_compute_profile {
	unsigned index, slices, instances, multiprocessors;
	unsigned starts[SIM_MAX_STARTS]; /* as many as instances */
	char name[48];			 /* "1c.3g.20gb" */
};
#define MIG_COMPUTE_PROFILES 9 /* NVML_COMPUTE_INSTANCE_PROFILE_COUNT */
bool mig_compute_profile(const struct sim_gpu *gpu,
			 const struct sim_mig_profile *of, unsigned index,
			 struct mig_compute_profile *profile);
int mig_compute_fits(const struct mig_instance *instance,
		     const struct mig_compute_profile *profile,
		     unsigned start);
unsigned mig_compute_capacity(const struct mig_instance *instance,
			      const struct mig_compute_profile *profile);

/* mig_change.c: the ledger must be open. A number and its serial name an
 * instance; with a serial of 0, whatever has the number. */

int mig_set_mode(const struct sim_gpu *gpu, unsigned card, unsigned mode,
		 int *activation);
/* What a reset of the card does: the pending mode holds, all instances are gone. */
int mig_reset(unsigned card);
/* What is made anew: its number and serial. */
struct mig_made {
	unsigned number;
	uint64_t serial;
};
int mig_create(const struct sim_gpu *gpu, unsigned card, unsigned profile_id,
	       int start, struct mig_made *made);
int mig_destroy(unsigned card, unsigned number, uint64_t serial);
int mig_create_compute(const struct sim_gpu *gpu, unsigned card,
		       unsigned instance, uint64_t serial, unsigned profile,
		       int start, struct mig_made *made);
int mig_destroy_compute(unsigned card, unsigned instance, unsigned number,
			uint64_t serial);

#endif
