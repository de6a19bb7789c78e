/*
 * The real dlsym cannot be asked for by name: any reference of ours to dlsym or
 * dlvsym, versioned or not, binds to our own definition, which comes first. So
 * it is read from the symbol tables of the loaded objects, which needs no
 * version name, no allocation and no lock.
 */
#include <link.h>
#include <string.h>

#include "elfsym.h"
#include "sys.h"

struct object {
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const uint16_t *versions;
	ElfW(Addr) base;
};

struct search {
	const char *name;
	bool past_self;
	void *before, *after;
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
	       strcmp(o->strings + symbol->st_name, name) == 0;
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

static bool holds(const struct dl_phdr_info *info, const void *address)
{
	ElfW(Addr) offset = (ElfW(Addr))address - info->dlpi_addr;

	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && offset - p->p_vaddr < p->p_memsz)
			return true;
	}
	return false;
}

static int visit(struct dl_phdr_info *info, size_t size, void *context)
{
	struct search *s = context;
	struct object o = { .base = info->dlpi_addr };
	void *found;

	(void)size;
	if (holds(info, (const void *)aq_elf_next)) {
		s->past_self = true;
		return 0;
	}
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			read_dynamic(&o, (const ElfW(Dyn) *)
				     (o.base + info->dlpi_phdr[i].p_vaddr));
	if (!o.symbols || !o.strings || !o.gnu_hash)
		return 0;
	found = find(&o, s->name);
	if (s->past_self && found) {
		s->after = found;
		return 1;
	}
	if (found && !s->before)
		s->before = found;
	return 0;
}

void *aq_elf_next(const char *name)
{
	struct search s = { .name = name };

	dl_iterate_phdr(visit, &s);
	return s.after ? s.after : s.before;
}
