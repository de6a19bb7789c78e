/* The part of the ledger program that is about MIG. */
#ifndef SIM_LEDGER_MIG_H
#define SIM_LEDGER_MIG_H

#include "sim.h"

/* Does what argv says; the ledger is open. A number of nvmlReturn_t. */
int ledger_mig(const char *root, const struct sim_hardware *hw, int argc,
	       char **argv);

#endif
