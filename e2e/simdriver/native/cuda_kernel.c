/*
 * What functions do, which is in their names:
 *
 *	busy_<n>us			runs that long (also ns, ms)
 *	busy_<a>us_to_<b>us		runs between the two, the calls of one
 *					function in a sequence that never varies
 *	meet_<n>us_<parties>_<key>	runs until so many functions of that
 *					key have begun, then n more
 *
 * All others run for 5 us, and so does what is no function at all.
 */
#include "cuda_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FUNCTION_MAGIC 0x46554e43u
#define FUNCTIONS_MAX 65536
#define SHORT_WHILE 5000 /* ns */

/* All functions lie here, so that any number can be told from a handle. Memory
 * of one that is gone is used for the next, as real drivers do. */
static struct CUfunc_st *functions;
static unsigned function_count;
static CUfunction unused;

static bool parse_time(const char **at, uint64_t *time)
{
	static const struct {
		const char *name;
		uint64_t ns;
	} units[] = { { "ns", 1 }, { "us", 1000 }, { "ms", 1000000 } };
	char *end;

	*time = strtoull(*at, &end, 10);
	if (end == *at)
		return false;
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strncmp(end, units[i].name, 2) != 0)
			continue;
		*time *= units[i].ns;
		*at = end + 2;
		return true;
	}
	return false;
}

static bool parse_busy(const char *name, struct kernel *kernel)
{
	const char *at = name + strlen("busy_");

	if (strncmp(name, "busy_", strlen("busy_")) != 0 ||
	    !parse_time(&at, &kernel->low))
		return false;
	kernel->high = kernel->low;
	if (strncmp(at, "_to_", strlen("_to_")) == 0) {
		at += strlen("_to_");
		if (!parse_time(&at, &kernel->high))
			return false;
	}
	return *at == '\0' && kernel->low <= kernel->high;
}

static bool parse_meet(const char *name, struct kernel *kernel)
{
	const char *at = name + strlen("meet_");
	int end = 0;

	if (strncmp(name, "meet_", strlen("meet_")) != 0 ||
	    !parse_time(&at, &kernel->low) ||
	    sscanf(at, "_%u_%39s%n", &kernel->parties, kernel->key, &end) < 2)
		return false;
	kernel->high = kernel->low;
	return at[end] == '\0' && kernel->parties > 0;
}

static struct kernel kernel_named(const char *name)
{
	struct kernel kernel = { .meeting = -1 };

	if (parse_busy(name, &kernel) || parse_meet(name, &kernel))
		return kernel;
	return (struct kernel){ .low = SHORT_WHILE, .high = SHORT_WHILE };
}

CUfunction function_new_locked(CUmodule module, const char *name)
{
	const size_t size = FUNCTIONS_MAX * sizeof(*functions);
	CUfunction made = unused;

	if (functions == NULL) {
		void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
				0);
		if (at == MAP_FAILED)
			return NULL;
		functions = at;
	}
	if (made == NULL && function_count == FUNCTIONS_MAX)
		return NULL;
	char *copy = strdup(name);
	if (copy == NULL)
		return NULL;
	if (made != NULL)
		unused = made->next;
	else
		made = &functions[function_count++];
	*made = (struct CUfunc_st){
		.magic = FUNCTION_MAGIC,
		.kernel = kernel_named(name),
		.module = module,
		.name = copy,
	};
	return made;
}

void function_free_locked(CUfunction function)
{
	free(function->name);
	*function = (struct CUfunc_st){ .next = unused };
	unused = function;
}

bool function_is(CUfunction function)
{
	uintptr_t offset = (uintptr_t)function - (uintptr_t)functions;

	return functions != NULL && offset % sizeof(*functions) == 0 &&
	       offset / sizeof(*functions) < function_count &&
	       function->magic == FUNCTION_MAGIC;
}

struct kernel *kernel_of_locked(CUfunction function)
{
	static struct kernel foreign = { .low = SHORT_WHILE,
					 .high = SHORT_WHILE };

	return function_is(function) ? &function->kernel : &foreign;
}

/* A permutation of the numbers, for sequences that look like chance. */
static uint64_t scramble(uint64_t n)
{
	n = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
	n = (n ^ n >> 32) * UINT64_C(0xd6e8feb86659fd93);
	return n ^ n >> 32;
}

CUresult kernel_piece_locked(struct kernel *kernel, CUdevice device,
			     struct piece *piece)
{
	uint64_t range = kernel->high - kernel->low;

	*piece = (struct piece){ COMPUTE_BUSY, .duration = kernel->low };
	if (range != 0)
		piece->duration += scramble(kernel->calls++) % (range + 1);
	if (kernel->parties == 0)
		return CUDA_SUCCESS;
	if (kernel->meeting < 0)
		kernel->meeting = work_meeting_locked(device, kernel->key,
						      kernel->parties);
	if (kernel->meeting < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	piece->kind = COMPUTE_MEET;
	piece->other = (uint32_t)kernel->meeting;
	return CUDA_SUCCESS;
}
