#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "sys.h"
#include "table.h"

#define CAPACITY_MIN 256u /* one page */

static uint32_t home(const struct aq_table *table, uint64_t key)
{
	return (uint32_t)aq_hash(key) & (table->capacity - 1);
}

static size_t bytes(uint32_t capacity)
{
	return (size_t)capacity * sizeof(struct aq_entry);
}

static void use(struct aq_table *table, struct aq_entry *entries,
		uint32_t capacity)
{
	table->entries = entries;
	table->count = 0;
	table->capacity = capacity;
}

static void free_entries(struct aq_table *table, struct aq_entry *entries,
			 uint32_t capacity)
{
	if (entries == table->few)
		memset(table->few, 0, sizeof(table->few));
	else if (entries)
		munmap(entries, bytes(capacity));
}

static bool grow(struct aq_table *table)
{
	AQ_KEEP_ERRNO;
	struct aq_entry *old = table->entries;
	uint32_t old_capacity = table->capacity;
	uint32_t capacity = old_capacity < CAPACITY_MIN ? CAPACITY_MIN
							: old_capacity * 2;
	void *memory;

	if (!old) {
		use(table, table->few, AQ_TABLE_FEW);
		return true;
	}
	memory = mmap(NULL, bytes(capacity), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	use(table, memory, capacity);
	for (uint32_t i = 0; i < old_capacity; i++)
		if (old[i].key)
			aq_table_put(table, old[i].key, old[i].value);
	free_entries(table, old, old_capacity);
	return true;
}

AQ_HOT bool aq_table_make_room(struct aq_table *table, uint32_t more)
{
	while (table->count + more > table->capacity / 2)
		if (!grow(table))
			return false;
	return true;
}

AQ_HOT struct aq_entry *aq_table_find(const struct aq_table *table, uint64_t key)
{
	uint32_t i;

	if (!table->count)
		return NULL;
	for (i = home(table, key); table->entries[i].key;
	     i = (i + 1) & (table->capacity - 1))
		if (table->entries[i].key == key)
			return &table->entries[i];
	return NULL;
}

AQ_HOT void aq_table_put(struct aq_table *table, uint64_t key, uint64_t value)
{
	uint32_t i = home(table, key);

	while (table->entries[i].key)
		i = (i + 1) & (table->capacity - 1);
	table->entries[i] = (struct aq_entry){ key, value };
	table->count++;
}

/* Closes the gap: what probed past it moves into it, unless that would put it
 * before its home. */
AQ_HOT void aq_table_remove(struct aq_table *table, struct aq_entry *entry)
{
	uint32_t mask = table->capacity - 1;
	uint32_t gap = (uint32_t)(entry - table->entries);

	for (uint32_t i = (gap + 1) & mask; table->entries[i].key;
	     i = (i + 1) & mask) {
		uint32_t from_home = (i - home(table, table->entries[i].key)) &
				     mask;

		if (from_home >= ((i - gap) & mask)) {
			table->entries[gap] = table->entries[i];
			gap = i;
		}
	}
	table->entries[gap].key = 0;
	table->count--;
}

void aq_table_clear(struct aq_table *table)
{
	free_entries(table, table->entries, table->capacity);
	use(table, NULL, 0);
}
