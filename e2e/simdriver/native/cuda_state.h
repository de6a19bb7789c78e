/*
 * What the files of libcuda share: the state of this process.
 *
 * One lock guards contexts, regions, pools and handles; the ledger has its own
 * and is always taken inside. Entry points check their arguments, take the lock
 * and leave the work to functions that expect it held (`_locked`).
 */
#ifndef SIM_CUDA_STATE_H
#define SIM_CUDA_STATE_H

#include <pthread.h>

#include "cuda_api.h"
#include "ledger.h"
#include "sim.h"

struct arena;
struct region;

/* A card, or the MIG device of one that this process has. */
struct device {
	const struct sim_gpu *gpu;
	unsigned ledger_index; /* the card's place in the description */
	uint64_t total;	       /* what a program is told that there is */
	uint64_t capacity;     /* of that in whole blocks */
	unsigned multiprocessors;
	char name[144];
	unsigned char uuid[16];
	struct ledger_partition partition;
	CUcontext primary;
	CUmemoryPool default_pool, pool;
};

struct cuda_process {
	bool initialised;
	char root[SIM_PATH_MAX];
	struct sim_hardware hardware;
	int device_count;
	struct device devices[SIM_MAX_GPUS];
	pthread_mutex_t lock;
};

extern struct cuda_process cuda;

/* cuda_init.c: 0, or what an entry point must return. */
static inline CUresult cuda_ready(void)
{
	return cuda.initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* cuda_visible.c: finds the devices; afterwards, whether that of a card is still
 * there, as the cards are divided now. */
void devices_find(void);
bool device_there(unsigned gpu);
void uuid_of_text(const char *text, unsigned char uuid[16]);

static inline bool cuda_is_device(CUdevice device)
{
	return device >= 0 && device < cuda.device_count;
}

static inline void cuda_lock(void)
{
	pthread_mutex_lock(&cuda.lock);
}

static inline void cuda_unlock(void)
{
	pthread_mutex_unlock(&cuda.lock);
}

/* cuda_context.c */
struct CUctx_st {
	CUdevice device;
	bool primary, alive;
	unsigned incarnation;	 /* a primary context may begin again */
	CUstream legacy;	 /* what stream 0 means; made when needed */
	uint64_t last_work;	 /* of all streams, see cuda_work.h */
	uint64_t last_blocking;	 /* of those that wait for stream 0 */
	unsigned references; /* of a primary context */
	unsigned flags;
	uint64_t limits[CU_LIMITS];
	struct arena *arena;	/* small cuMemAlloc memory */
	struct arena *array_arena; /* small arrays, once there is one */
	struct region *regions; /* all other memory that dies with it */
};

/* The calling thread's context, or NULL; *result says why there is none. */
CUcontext context_current(CUresult *result);
CUresult context_create_locked(CUcontext *context, CUdevice device,
			       unsigned flags, bool primary);
CUresult context_activate_locked(CUcontext context);
void context_deactivate_locked(CUcontext context);

/* cuda_limit.c: what a context's limits are at first, and what they took. */
void limits_begin_locked(CUcontext context);
void limits_end_locked(CUcontext context);

/* Device memory of a card in whole blocks, from the ledger. When the card is
 * full, what this process's pools hold unused is given back first. */
bool blocks_take_locked(CUdevice device, uint64_t bytes);
void blocks_give_locked(CUdevice device, uint64_t bytes);

/* cuda_region.c: what lies at which address. */
enum region_kind {
	REGION_SMALL,	 /* a block of an arena */
	REGION_DEVICE,	 /* cuMemAlloc of more than SMALL_MAX */
	REGION_MANAGED,
	REGION_POOL,	 /* a pool's allocation of more than SMALL_MAX */
	REGION_HOST,
	REGION_FOREIGN,	 /* memory that another allocated */
	REGION_RESERVED, /* cuMemAddressReserve */
	REGION_MODULE,	 /* what a module costs */
	REGION_GRAPH,	 /* of a graph's own, see cuda_graph_memory.c */
};

struct region {
	enum region_kind kind;
	CUdevice device;
	CUdeviceptr base;
	uint64_t bytes; /* as asked for */
	uint64_t span;	/* whole blocks */
	CUcontext context;
	CUmemoryPool pool;
	struct arena *arena;
	struct graph_memory *graph; /* REGION_GRAPH */
	struct mapping **mappings; /* REGION_RESERVED: one entry a block */
	struct region *next, **link; /* in the context's list */
};

/* Host and managed memory can be touched by the CPU. */
struct region *region_new_locked(enum region_kind kind, uint64_t bytes,
				 CUdevice device);
void region_free_locked(struct region *region);
/* Puts a region that the caller has filled in at its address, or takes it out. */
bool region_place_locked(struct region *region);
void region_remove_locked(struct region *region);
struct region *region_find_locked(CUdeviceptr pointer);
/* alignment is a power of two, at least the block. 0 when there is no room. */
CUdeviceptr address_reserve_locked(uint64_t span, uint64_t alignment,
				   bool touchable);
void address_release_locked(CUdeviceptr base, uint64_t span, bool touchable);

/* cuda_arena.c: suballocation of blocks in units of 512 bytes. */
#define SMALL_MAX (UINT64_C(1) << 20)
#define SMALL_UNIT UINT64_C(512)

/* Where an arena's blocks come from: the card, or a pool. */
struct arena_source {
	bool (*take)(void *owner);
	void (*give)(void *owner);
};

struct arena *arena_new(const struct arena_source *source, void *owner,
			CUdevice device, CUcontext context, CUmemoryPool pool);
/* Gives back every block, with whatever is still allocated in them. */
void arena_destroy_locked(struct arena *arena);
CUdeviceptr arena_alloc_locked(struct arena *arena, uint64_t bytes);
/* The size of the allocation at pointer in a block of an arena, or 0. */
uint64_t arena_size_locked(struct region *block, CUdeviceptr pointer);
/* The same for a pointer anywhere in an allocation; *base gets its start. */
uint64_t arena_range_locked(struct region *block, CUdeviceptr pointer,
			    CUdeviceptr *base);
void arena_free_locked(struct region *block, CUdeviceptr pointer);

/* cuda_pool.c */
bool pool_valid_locked(CUmemoryPool pool);
CUdevice pool_device(CUmemoryPool pool);
/* Another process's pool, which gives nothing here and says of itself that it has
 * reserved so much. */
CUmemoryPool pool_import_locked(CUdevice device, uint64_t reserved);
bool pool_imported(CUmemoryPool pool);
/* The device's own choice, or its default pool. */
CUmemoryPool pool_current_locked(CUdevice device);
CUresult pool_alloc_locked(CUmemoryPool pool, CUdeviceptr *pointer,
			   uint64_t bytes);
CUresult pool_free_locked(struct region *region, CUdeviceptr pointer);
/* At a point of synchronisation: down to each pool's release threshold. */
void pools_synchronise_locked(CUdevice device);
/* When the card is full: everything unused. */
bool pools_release_locked(CUdevice device);

/* cuda_graph_memory.c */
CUresult graph_memory_free_locked(struct region *region, CUdeviceptr pointer);

/* cuda_work.c: waits until the context has nothing left to do. */
void work_drain(CUcontext context);

/* cuda_capture.c: asked first by every call that a capture cannot see and that
 * the manual calls unsafe. */
CUresult capture_unsafe(void);

/* cuda_memory.c */
CUresult memory_free_locked(CUdeviceptr pointer);

/* cuda_array.c: the end of a context's arrays. */
void arrays_end_locked(CUcontext context);

/* cuda_handle.c: physical memory behind handles. */
struct allocation *allocation_find_locked(CUmemGenericAllocationHandle handle);
/* own: takes the memory; else it is another process's, or none. */
CUresult allocation_new_locked(CUmemGenericAllocationHandle *handle,
			       uint64_t bytes,
			       const CUmemAllocationProp *properties, bool own);
bool allocation_retain_locked(struct allocation *allocation,
			      CUmemGenericAllocationHandle *handle);
uint64_t allocation_bytes(const struct allocation *allocation);
const CUmemAllocationProp *
allocation_properties(const struct allocation *allocation);
void allocation_mapped(struct allocation *allocation);
void allocation_unmapped_locked(struct allocation *allocation);

/* cuda_stream.c */
CUcontext stream_context(CUstream stream, CUresult *result);

#endif
