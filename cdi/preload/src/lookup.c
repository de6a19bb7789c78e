/*
 * How a program finds the drivers' functions, and how it is given ours instead.
 *
 * Three doors: ELF symbol lookup, where our exports come first; dlsym and
 * dlvsym, filtered here; and cuGetProcAddress, whose answer is exchanged by the
 * identity of the pointer, so that a version of a function we do not know is
 * handed out as it is rather than called with the wrong arguments.
 */
#include <dlfcn.h>
#include <string.h>

#include "elfsym.h"
#include "fork.h"
#include "functions.h"
#include "lock.h"
#include "say.h"

struct function {
	const char *name, *base;
	int since, stream;
	void *wrapper;
	size_t real; /* offset in struct aq_real */
};

#define ONE(...) +1
#define WRAPPED (0 AQ_WRAPPED_CUDA(ONE) AQ_WRAPPED_NVML(ONE))
#define CALLED (0 AQ_CALLED_CUDA(ONE) AQ_CALLED_NVML(ONE))

/* Filled when they are first needed: constants with addresses in them would be for
 * the loader to relocate, in every process that has never heard of CUDA. */
static struct function wrapped[WRAPPED], called[CALLED];
static bool tables_filled;
static struct aq_lock tables_lock;

static void fill_wrapped(struct function *f)
{
#define ROW(name, base, since, stream) \
	*f++ = (struct function){ #name, base, since, stream, name, \
				  offsetof(struct aq_real, name) };
	AQ_WRAPPED_CUDA(ROW)
	AQ_WRAPPED_NVML(ROW)
#undef ROW
}

static void fill_called(struct function *f)
{
#define ROW(symbol) \
	*f++ = (struct function){ \
		.name = #symbol, .real = offsetof(struct aq_real, symbol) \
	};
	AQ_CALLED_CUDA(ROW)
	AQ_CALLED_NVML(ROW)
#undef ROW
}

static void fill_tables(void)
{
	if (__atomic_load_n(&tables_filled, __ATOMIC_ACQUIRE))
		return;
	aq_lock(&tables_lock);
	if (!tables_filled) {
		fill_wrapped(wrapped);
		fill_called(called);
		__atomic_store_n(&tables_filled, true, __ATOMIC_RELEASE);
	}
	aq_unlock(&tables_lock);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct aq_real aq_real;
bool aq_cuda_bound, aq_nvml_bound;

static struct aq_lock bind_lock;

/* Where the stubs jump to. */
typedef void *dlsym_function(void *, const char *);
typedef void *dlvsym_function(void *, const char *, const char *);
/* What every process writes at its start lies on a page that the loader has written
 * already: another page would be another fault. */
#define AT_START __attribute__((section(".data")))
dlsym_function *aq_real_dlsym AT_START __attribute__((visibility("hidden")));
dlvsym_function *aq_real_dlvsym AT_START __attribute__((visibility("hidden")));

/* Found by name too: before glibc 2.34 they are in libdl, and to need that would
 * make every process load it. One that has no libdl from its start cannot load
 * CUDA there. */
typedef void *dlopen_function(const char *, int);
typedef char *dlerror_function(void);
static dlopen_function *real_dlopen AT_START;
static dlerror_function *real_dlerror AT_START;

static void *no_dlsym(void *handle, const char *name)
{
	(void)handle;
	(void)name;
	return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version)
{
	(void)version;
	return no_dlsym(handle, name);
}

/* When the library is loaded, or when somebody asks earlier: then no other thread
 * changes the list of objects. It touches no driver. */
static void __attribute__((constructor)) find_dlsym(void)
{
	dlvsym_function *versioned;
	dlsym_function *plain;

	if (__atomic_load_n(&aq_real_dlsym, __ATOMIC_ACQUIRE))
		return;
	plain = (dlsym_function *)aq_elf_next("dlsym");
	versioned = (dlvsym_function *)aq_elf_next("dlvsym");
	real_dlopen = (dlopen_function *)aq_elf_next("dlopen");
	real_dlerror = (dlerror_function *)aq_elf_next("dlerror");
	if (!plain)
		aq_say("no dlsym in this process: no CUDA");
	__atomic_store_n(&aq_real_dlvsym, versioned ? versioned : no_dlvsym,
			 __ATOMIC_RELEASE);
	__atomic_store_n(&aq_real_dlsym, plain ? plain : no_dlsym,
			 __ATOMIC_RELEASE);
}

/* A library's handle if the process has it. */
static void *loaded(const char *library)
{
	return real_dlopen ? real_dlopen(library, RTLD_LAZY | RTLD_NOLOAD) :
			     NULL;
}

static void **real_member(const struct function *f)
{
	return (void **)((char *)&aq_real + f->real);
}

static bool is_cuda(const struct function *f)
{
	return f->name[0] == 'c';
}

/* The identity table: the driver's pointer to our wrapper. */
#define TRANSLATIONS 1024u /* several times the wrapped functions */
static struct {
	void *real, *wrapper;
} translations[TRANSLATIONS];

static unsigned translation_slot(const void *real)
{
	uint64_t h = (uint64_t)(uintptr_t)real * UINT64_C(0x9e3779b97f4a7c15);
	unsigned i = (unsigned)(h >> 54) % TRANSLATIONS;

	while (translations[i].real && translations[i].real != real)
		i = (i + 1) % TRANSLATIONS;
	return i;
}

static void translation_add(void *real, void *wrapper)
{
	unsigned i = translation_slot(real);

	if (!translations[i].real) {
		translations[i].wrapper = wrapper;
		translations[i].real = real;
	}
}

static void *translate(void *real)
{
	return translations[translation_slot(real)].wrapper;
}

static void *driver_lookup(const char *base, int version, int stream)
{
	void *found = NULL;
	int status = 0;

	if (aq_real.cuGetProcAddress_v2) {
		if (aq_real.cuGetProcAddress_v2(base, &found, version,
						(cuuint64_t)stream,
						&status) != CUDA_SUCCESS)
			return NULL;
	} else if (aq_real.cuGetProcAddress &&
		   aq_real.cuGetProcAddress(base, &found, version,
					    (cuuint64_t)stream) !=
			   CUDA_SUCCESS) {
		return NULL;
	}
	return found;
}

/* Exported names first; then, for a driver whose cuGetProcAddress does not give
 * the exported pointers, what it gives for each function we know. */
static void fill_translations(void)
{
	for (size_t i = 0; i < COUNT(wrapped); i++) {
		void *real = *real_member(&wrapped[i]);

		if (is_cuda(&wrapped[i]) && real)
			translation_add(real, wrapped[i].wrapper);
	}
	for (size_t i = 0; i < COUNT(wrapped); i++) {
		const struct function *f = &wrapped[i];
		void *real = f->since && *real_member(f)
			? driver_lookup(f->base, f->since, f->stream)
			: NULL;

		if (real)
			translation_add(real, f->wrapper);
	}
}

/* The names of functions that are there and not limited, for one line. */
struct names {
	char text[320];
};

static void names_add(struct names *names, const char *name)
{
	size_t used = strlen(names->text), size = strlen(name);

	if (used + size + 2 > sizeof(names->text) ||
	    strstr(names->text, name))
		return;
	names->text[used] = ' ';
	memcpy(names->text + used + 1, name, size + 1);
}

/* The name that the next version of a function would be exported under:
 * cuMemAlloc_v2 gives cuMemAlloc_v3. False: none that we can tell. */
static bool next_name(const struct function *f, char name[64])
{
	size_t base = strlen(f->base);
	const char *rest = f->name + base;
	char next = '2';

	if (base + sizeof("_v2_ptsz") > 64)
		return false;
	if (rest[0] == '_' && rest[1] == 'v') {
		next = (char)(rest[2] + 1);
		rest += 3;
	}
	memcpy(name, f->base, base);
	memcpy(name + base, "_v", 2);
	name[base + 2] = next;
	strcpy(name + base + 3, rest);
	return next <= '9';
}

/* A newer driver may bring a version of a function that we do not know. It is
 * handed out as it is, so that programs work; but somebody should hear of it. */
static void say_unwrapped(void *handle)
{
	struct names names = { "" };
	int version = 0;

	if (aq_real.cuDriverGetVersion)
		aq_real.cuDriverGetVersion(&version);
	for (size_t i = 0; i < COUNT(wrapped); i++) {
		const struct function *f = &wrapped[i];
		char name[64];
		void *found;

		if (!f->since || !*real_member(f))
			continue;
		found = next_name(f, name) ? aq_real_dlsym(handle, name) : NULL;
		if (found && !translate(found))
			names_add(&names, name);
		found = driver_lookup(f->base, version, f->stream);
		if (found && !translate(found))
			names_add(&names, f->base);
	}
	if (names.text[0])
		aq_say("not limited, being newer than this library:",
		       names.text);
}

static void bind_from(void *handle, const struct function *f, size_t count,
		      bool cuda)
{
	for (; count > 0; f++, count--)
		if (is_cuda(f) == cuda)
			*real_member(f) = aq_real_dlsym(handle, f->name);
}

/* handle: where the functions are, or NULL for the library of that name if it
 * is loaded. It is never closed, so the functions stay where they are. */
static bool bind(void *handle, const char *library, bool cuda, bool *bound)
{
	AQ_KEEP_ERRNO;

	find_dlsym();
	fill_tables();
	aq_fork_watch();
	aq_lock(&bind_lock);
	if (!*bound) {
		if (!handle)
			handle = loaded(library);
		if (handle) {
			bind_from(handle, wrapped, COUNT(wrapped), cuda);
			bind_from(handle, called, COUNT(called), cuda);
			if (cuda) {
				fill_translations();
				say_unwrapped(handle);
			}
			__atomic_store_n(bound, true, __ATOMIC_RELEASE);
		}
		/* The host has not asked for what was not found. */
		if (real_dlerror)
			real_dlerror();
	}
	aq_unlock(&bind_lock);
	return *bound;
}

bool aq_bind_cuda(void)
{
	return bind(NULL, "libcuda.so.1", true, &aq_cuda_bound);
}

bool aq_bind_nvml(void)
{
	return bind(NULL, "libnvidia-ml.so.1", false, &aq_nvml_bound);
}

void aq_lookup_forked(void)
{
	aq_lock_reset(&bind_lock);
	aq_lock_reset(&tables_lock);
}

static const struct function *find_wrapped(const char *name)
{
	size_t low = 0, high = COUNT(wrapped);

	fill_tables();
	while (low < high) {
		size_t middle = (low + high) / 2;
		int order = strcmp(name, wrapped[middle].name);

		if (order == 0)
			return &wrapped[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

/* Calls nothing: this is as far as most names get, at whatever moment. */
static bool is_candidate(const char *name)
{
	if (name[0] == 'c' && name[1] == 'u')
		name += 2;
	else if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' &&
		 name[3] == 'l')
		name += 4;
	else
		return false;
	return name[0] >= 'A' && name[0] <= 'Z';
}

/* Whether the driver has f. A handle that finds it may itself be the driver,
 * under a name or in a namespace where we would not have found it. */
static bool is_real(const struct function *f, void *handle, void *found)
{
	bool cuda = is_cuda(f);

	if (cuda ? aq_cuda() : aq_nvml())
		return *real_member(f) != NULL;
	return found && found != f->wrapper &&
	       bind(handle, NULL, cuda, cuda ? &aq_cuda_bound : &aq_nvml_bound) &&
	       *real_member(f) != NULL;
}

struct arguments {
	void *handle;
	const char *name, *version;
};

void *aq_dlsym_filter(struct arguments *a) __attribute__((visibility("hidden")));

void *aq_dlsym_filter(struct arguments *a)
{
	const struct function *f;
	void *found = NULL;

	find_dlsym();
	if (!a->name || !is_candidate(a->name) || !(f = find_wrapped(a->name)))
		return NULL;
	if (a->handle != RTLD_DEFAULT && a->handle != RTLD_NEXT) {
		found = aq_real_dlsym(a->handle, a->name);
		if (!found)
			return NULL; /* and so the real one says why */
	}
	if (is_real(f, a->handle, found))
		return f->wrapper;
	/* The driver has no such function: neither have we. Asked of libc, the
	 * real one says no, and sets dlerror. */
	a->handle = loaded("libc.so.6");
	return NULL;
}

/* A function that we do not wrap, or not in that version, is the driver's. */
static void *exchange(void *real)
{
	void *wrapper = translate(real);

	return wrapper ? wrapper : real;
}

CUresult cuGetProcAddress(const char *name, void **function, int version,
			  cuuint64_t flags)
{
	CUresult result;

	AQ_ENTER(cuGetProcAddress);
	result = aq_real.cuGetProcAddress(name, function, version, flags);
	if (result == CUDA_SUCCESS && function && *function)
		*function = exchange(*function);
	return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
			     cuuint64_t flags, int *status)
{
	CUresult result;

	AQ_ENTER(cuGetProcAddress_v2);
	result = aq_real.cuGetProcAddress_v2(name, function, version, flags,
					     status);
	if (result == CUDA_SUCCESS && function && *function)
		*function = exchange(*function);
	return result;
}
