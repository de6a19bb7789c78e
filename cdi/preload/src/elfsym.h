/* Symbols of loaded objects, read from their ELF tables. */
#ifndef AQ_ELFSYM_H
#define AQ_ELFSYM_H

/* The first definition of a function after this library in the loader's order,
 * as RTLD_NEXT would find it; else before it. NULL when there is none. Not to be
 * called while another thread may load or unload objects. */
void *aq_elf_next(const char *name);

#endif
