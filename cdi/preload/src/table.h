/*
 * A hash table from a number that is not 0 to a number: open addressing with
 * linear probing, 16 bytes an entry, no tombstones. Memory is from mmap, but for
 * the first entries, which lie in the table itself: one page less for a program
 * that has little. No lock of its own, and it must stay where it is.
 */
#ifndef AQ_TABLE_H
#define AQ_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct aq_entry {
	uint64_t key, value;
};

#define AQ_TABLE_FEW 4u

struct aq_table {
	struct aq_entry *entries;
	uint32_t count, capacity; /* capacity: 0 or a power of two */
	struct aq_entry few[AQ_TABLE_FEW]; /* the first memory for entries */
};

/* Makes room for so many more, so that aq_table_put cannot fail. */
bool aq_table_make_room(struct aq_table *table, uint32_t more);

/* The entry of key, or NULL. Valid until the table is next changed. */
struct aq_entry *aq_table_find(const struct aq_table *table, uint64_t key);

/* Adds a key that is not there, with room made before. */
void aq_table_put(struct aq_table *table, uint64_t key, uint64_t value);

void aq_table_remove(struct aq_table *table, struct aq_entry *entry);

/* Forgets everything and gives the memory back. */
void aq_table_clear(struct aq_table *table);

static inline uint64_t aq_hash(uint64_t key)
{
	key *= UINT64_C(0x9e3779b97f4a7c15);
	return key ^ key >> 32;
}

#endif
