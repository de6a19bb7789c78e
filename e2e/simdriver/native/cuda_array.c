/*
 * CUDA arrays, mipmapped or not. Rows are whole sectors of 64 bytes, heights
 * multiples of 8 rows, and an array whole pages of 64 KiB, about as cards lay
 * textures out; small ones share blocks among each other. A program is told of
 * this only for an array without memory of its own (NVIDIA's manual of
 * cuArrayGetMemoryRequirements), into which memory can be mapped tile by tile.
 */
#include "cuda_state.h"

#include <stdlib.h>
#include <string.h>

#define SECTOR 64
#define ROWS 8
#define PAGE (UINT64_C(64) << 10)

#define EMPTY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

struct tile {
	struct tile *next;
	int type;
	unsigned at[8];
	struct allocation *allocation;
};

struct image {
	bool mipmapped;
	CUcontext context;
	unsigned flags;
	uint64_t need;	   /* bytes, whole pages */
	uint64_t span;	   /* whole blocks; 0: none of its own */
	CUdeviceptr small; /* its place in the context's arena of arrays */
	struct tile *tiles;
	struct image *next;
};

static struct image *images;

static unsigned texel_bits(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	switch (d->Format) {
	case 0x01: case 0x08: /* 8 bits */
		return 8 * d->NumChannels;
	case 0x02: case 0x09: case 0x10: /* 16 */
		return 16 * d->NumChannels;
	case 0x03: case 0x0a: case 0x20: /* 32 */
		return 32 * d->NumChannels;
	}
	return d->Format >= 0x91 && d->Format <= 0x9e ? 8 : 0; /* compressed */
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
	bool layered = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t width = most(d->Width >> level, 1);
	uint64_t height = d->Height == 0 ? 0 : most(d->Height >> level, 1);
	uint64_t depth = layered ? d->Depth : d->Depth >> level;

	return sim_round_up((width * texel_bits(d) + 7) / 8, SECTOR) *
	       (height == 0 ? 1 : sim_round_up(height, ROWS)) * most(depth, 1);
}

static uint64_t need_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < levels; i++)
		bytes += level_bytes(d, i);
	return sim_round_up(bytes, PAGE);
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	if (d->Width == 0 || (d->Height == 0 && d->Depth != 0 &&
			      !(d->Flags & CUDA_ARRAY3D_LAYERED)) ||
	    (d->NumChannels != 1 && d->NumChannels != 2 &&
	     d->NumChannels != 4) ||
	    texel_bits(d) == 0)
		return CUDA_ERROR_INVALID_VALUE;
	/* What the cards' textures end at, roughly. */
	return d->Width > 1 << 18 || d->Height > 1 << 17 || d->Depth > 1 << 14 ?
		       CUDA_ERROR_INVALID_VALUE :
		       CUDA_SUCCESS;
}

static bool take_block(void *context)
{
	return blocks_take_locked(((CUcontext)context)->device, SIM_BLOCK);
}

static void give_block(void *context)
{
	blocks_give_locked(((CUcontext)context)->device, SIM_BLOCK);
}

static bool take_small_locked(struct image *image)
{
	static const struct arena_source blocks = { take_block, give_block };
	CUcontext context = image->context;

	if (context->array_arena == NULL)
		context->array_arena = arena_new(&blocks, context,
						 context->device, context, NULL);
	if (context->array_arena != NULL)
		image->small = arena_alloc_locked(context->array_arena,
						  image->need);
	return image->small != 0;
}

static bool take_locked(struct image *image)
{
	if (image->flags & EMPTY)
		return true;
	if (image->need <= SMALL_MAX)
		return take_small_locked(image);
	image->span = sim_round_up(image->need, SIM_BLOCK);
	if (image->span <= cuda.devices[image->context->device].capacity &&
	    blocks_take_locked(image->context->device, image->span))
		return true;
	image->span = 0;
	return false;
}

static void drop_tile_locked(struct tile **link)
{
	struct tile *tile = *link;

	*link = tile->next;
	allocation_unmapped_locked(tile->allocation);
	free(tile);
}

static void discard_locked(struct image *image)
{
	while (image->tiles != NULL)
		drop_tile_locked(&image->tiles);
	if (image->small != 0)
		arena_free_locked(region_find_locked(image->small),
				  image->small);
	if (image->span != 0)
		blocks_give_locked(image->context->device, image->span);
	free(image);
}

void arrays_end_locked(CUcontext context)
{
	for (struct image **link = &images; *link != NULL;) {
		struct image *image = *link;
		if (image->context != context) {
			link = &image->next;
			continue;
		}
		*link = image->next;
		discard_locked(image);
	}
	if (context->array_arena != NULL)
		arena_destroy_locked(context->array_arena);
	context->array_arena = NULL;
}

/* levels 0: an array without mipmaps. */
static CUresult create(struct image **out, const CUDA_ARRAY3D_DESCRIPTOR *d,
		       unsigned levels)
{
	CUresult result;
	CUcontext context = context_current(&result);

	if (context == NULL)
		return result;
	result = check(d);
	if (result != CUDA_SUCCESS)
		return result;
	struct image *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct image){
		.mipmapped = levels != 0,
		.context = context,
		.flags = d->Flags,
		.need = need_of(d, levels == 0 ? 1 : levels),
	};
	cuda_lock();
	if (take_locked(made)) {
		made->next = images;
		images = made;
		*out = made;
	} else {
		free(made);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	cuda_unlock();
	return result;
}

CUresult cuArray3DCreate_v2(CUarray *array,
			    const CUDA_ARRAY3D_DESCRIPTOR *description)
{
	if (array == NULL || description == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	return create((struct image **)array, description, 0);
}

CUresult cuArrayCreate_v2(CUarray *array,
			  const CUDA_ARRAY_DESCRIPTOR *description)
{
	if (array == NULL || description == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	const CUDA_ARRAY3D_DESCRIPTOR d = {
		.Width = description->Width,
		.Height = description->Height,
		.Format = description->Format,
		.NumChannels = description->NumChannels,
	};
	return create((struct image **)array, &d, 0);
}

/* More levels than there are halvings are as many as there are. */
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
				const CUDA_ARRAY3D_DESCRIPTOR *description,
				unsigned levels)
{
	if (array == NULL || description == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t largest = most(description->Width, description->Height);
	if (!(description->Flags & CUDA_ARRAY3D_LAYERED))
		largest = most(largest, description->Depth);
	unsigned halvings = 1;
	while (largest >> halvings != 0)
		halvings++;
	if (levels > halvings)
		levels = halvings;
	return create((struct image **)array, description,
		      levels == 0 ? 1 : levels);
}

/* The link to it in the list; NULL when the handle is none. */
static struct image **find_locked(const void *handle, bool mipmapped)
{
	struct image **link = &images;

	while (*link != NULL && (const void *)*link != handle)
		link = &(*link)->next;
	return *link != NULL && (*link)->mipmapped == mipmapped ? link : NULL;
}

static CUresult destroy(const void *handle, bool mipmapped)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	cuda_lock();
	struct image **link = find_locked(handle, mipmapped);
	if (link == NULL) {
		result = CUDA_ERROR_INVALID_HANDLE;
	} else {
		struct image *image = *link;
		*link = image->next;
		discard_locked(image);
	}
	cuda_unlock();
	return result;
}

CUresult cuArrayDestroy(CUarray array)
{
	return destroy(array, false);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	return destroy(array, true);
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need,
			     const void *handle, bool mipmapped, CUdevice device)
{
	CUresult result = cuda_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (need == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	cuda_lock();
	struct image **link = find_locked(handle, mipmapped);
	if (link == NULL)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (!((*link)->flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*need = (CUDA_ARRAY_MEMORY_REQUIREMENTS){
			.size = (*link)->need, .alignment = PAGE
		};
	cuda_unlock();
	return result;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need,
				      CUarray array, CUdevice device)
{
	return requirements(need, array, false, device);
}

CUresult cuMipmappedArrayGetMemoryRequirements(
	CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUmipmappedArray array,
	CUdevice device)
{
	return requirements(need, array, true, device);
}

static struct tile **find_tile(struct image *image, const CUarrayMapInfo *info)
{
	struct tile **link = &image->tiles;

	while (*link != NULL &&
	       ((*link)->type != info->subresourceType ||
		memcmp((*link)->at, info->subresource, sizeof((*link)->at))))
		link = &(*link)->next;
	return link;
}

static CUresult map_locked(const CUarrayMapInfo *info)
{
	struct image **link = find_locked(info->resource,
					  info->resourceType != 0);

	if (link == NULL || !((*link)->flags & EMPTY))
		return CUDA_ERROR_INVALID_VALUE;
	struct image *image = *link;
	struct tile **at = find_tile(image, info);
	if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
		if (*at != NULL)
			drop_tile_locked(at);
		return CUDA_SUCCESS;
	}
	struct allocation *allocation = allocation_find_locked(info->memHandle);
	struct tile *tile = allocation == NULL ? NULL : malloc(sizeof(*tile));
	if (tile == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	allocation_mapped(allocation);
	if (*at != NULL)
		drop_tile_locked(at);
	*tile = (struct tile){ .next = image->tiles,
			       .type = info->subresourceType,
			       .allocation = allocation };
	memcpy(tile->at, info->subresource, sizeof(tile->at));
	image->tiles = tile;
	return CUDA_SUCCESS;
}

/* All operations are done when the call is made: nothing here depends on when
 * a mapping takes effect. The first that is wrong ends it. */
CUresult cuMemMapArrayAsync(CUarrayMapInfo *infos, unsigned count,
			    CUstream stream)
{
	CUresult result;

	if (stream_context(stream, &result) == NULL)
		return result;
	if (infos == NULL && count != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	result = CUDA_SUCCESS;
	for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
		result = map_locked(&infos[i]);
	cuda_unlock();
	return result;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *infos, unsigned count,
				 CUstream stream)
{
	return cuMemMapArrayAsync(infos, count, stream);
}
