/* What a process can tell of itself, for the ledger's slots. */
#ifndef SIM_PROCESS_H
#define SIM_PROCESS_H

#include <stdint.h>

/* The inode of a namespace, as of /proc/self/ns/mnt; 0 without /proc. */
uint64_t process_namespace(const char *path);
/* When this process began, in clock ticks since boot; 0 without /proc. */
uint64_t process_start_ticks(void);
void process_command(char command[16]);

#endif
