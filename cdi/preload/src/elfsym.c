/*
 * The real dlsym cannot be asked for by name: any reference of ours to dlsym or
 * dlvsym, versioned or not, binds to our own definition, which comes first. So
 * it is read from the symbol tables of the loaded objects.
 *
 * The first to call dlsym may be the run-time library of a sanitizer or an
 * allocator that has yet to find malloc. So nothing here calls any function:
 * the loader's list of objects is a variable of it, the one debuggers read.
 */
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "elfsym.h"

struct object {
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const uint16_t *versions;
	ElfW(Addr) base;
};

/* glibc relocates these pointers in place; the vdso's stay as they are. */
static const void *table(const struct object *o, const ElfW(Dyn) *entry)
{
	ElfW(Addr) address = entry->d_un.d_ptr;

	return (const void *)(address < o->base ? address + o->base : address);
}

static void read_dynamic(struct object *o, const ElfW(Dyn) *entry)
{
	for (; entry->d_tag != DT_NULL; entry++) {
		switch (entry->d_tag) {
		case DT_SYMTAB:
			o->symbols = table(o, entry);
			break;
		case DT_STRTAB:
			o->strings = table(o, entry);
			break;
		case DT_GNU_HASH:
			o->gnu_hash = table(o, entry);
			break;
		case DT_VERSYM:
			o->versions = table(o, entry);
			break;
		}
	}
}

static bool is_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

static uint32_t gnu_hash(const char *name)
{
	uint32_t h = 5381;

	for (; *name; name++)
		h = h * 33 + (unsigned char)*name;
	return h;
}

/* A version with the top bit is kept for old programs only. */
static bool is_match(const struct object *o, uint32_t i, const char *name)
{
	const ElfW(Sym) *symbol = &o->symbols[i];

	return symbol->st_shndx != SHN_UNDEF &&
	       (symbol->st_info & 0xf) == STT_FUNC &&
	       !(o->versions && (o->versions[i] & 0x8000)) &&
	       is_same(o->strings + symbol->st_name, name);
}

static void *find(const struct object *o, const char *name)
{
	uint32_t buckets = o->gnu_hash[0], first = o->gnu_hash[1];
	uint32_t blooms = o->gnu_hash[2], hash = gnu_hash(name);
	const uint32_t *bucket = (const uint32_t *)
		((const ElfW(Addr) *)(o->gnu_hash + 4) + blooms);
	const uint32_t *chain = bucket + buckets;
	uint32_t i;

	if (!buckets || (i = bucket[hash % buckets]) < first)
		return NULL;
	for (;; i++) {
		uint32_t h = chain[i - first];

		if ((h | 1) == (hash | 1) && is_match(o, i, name))
			return (void *)(o->base + o->symbols[i].st_value);
		if (h & 1)
			return NULL;
	}
}

static void *find_in(const struct link_map *map, const char *name)
{
	struct object o = { .base = map->l_addr };

	read_dynamic(&o, map->l_ld);
	return o.symbols && o.strings && o.gnu_hash ? find(&o, name) : NULL;
}

void *aq_elf_next(const char *name)
{
	void *before = NULL, *found;
	bool past_self = false;

	for (const struct link_map *map = _r_debug.r_map; map;
	     map = map->l_next) {
		if (map->l_ld == _DYNAMIC) {
			past_self = true;
			continue;
		}
		found = find_in(map, name);
		if (found && past_self)
			return found;
		if (found && !before)
			before = found;
	}
	return before;
}
