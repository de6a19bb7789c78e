/*
 * CUDA arrays, which textures are made of. How much one takes is the driver's
 * secret, but it tells it of an array that has no memory yet (deferred mapping).
 * So such a twin is made and asked first; where that is not to be had, the size
 * is reckoned, rather too high.
 *
 * Arrays without memory of their own, sparse ones and deferred ones, are not
 * charged: what is mapped into them was charged when it was created (sparse.c).
 */
#include "arrays.h"
#include "memory.h"
#include "vmm.h"

#define ROW UINT64_C(512)
#define ROWS UINT64_C(8)
#define TOTAL (UINT64_C(64) << 10)
#define TEXEL_MAX 16

/* Bits of a texel of one channel, by format; block-compressed formats have all
 * their channels in it. */
static const struct {
	uint8_t first, last;
	uint8_t bits;
	bool whole; /* whatever the channels */
} formats[] = {
	{ 0x01, 0x01, 8, false }, /* unsigned */
	{ 0x02, 0x02, 16, false },
	{ 0x03, 0x03, 32, false },
	{ 0x08, 0x08, 8, false }, /* signed */
	{ 0x09, 0x09, 16, false },
	{ 0x0a, 0x0a, 32, false },
	{ 0x10, 0x10, 16, false }, /* half, float */
	{ 0x20, 0x20, 32, false },
	{ 0x91, 0x9e, 8, true }, /* BC1 to BC7 */
	{ 0xb0, 0xb0, 16, true }, /* NV12 */
	{ 0xc0, 0xcb, 64, true }, /* normalised integers, up to 4 times 16 */
};

static uint64_t texel_bits(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	for (unsigned i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (d->Format >= formats[i].first &&
		    d->Format <= formats[i].last)
			return formats[i].whole
				? formats[i].bits
				: (uint64_t)formats[i].bits * d->NumChannels;
	return TEXEL_MAX * 8;
}

static uint64_t round_up(uint64_t n, uint64_t step)
{
	return (n + step - 1) / step * step;
}

static uint64_t at_least_1(uint64_t n)
{
	return n ? n : 1;
}

static bool is_layered(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

/* One level. Sizes that no array can have are as good as infinite. */
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
	uint64_t width = at_least_1(d->Width >> level);
	uint64_t height = d->Height ? at_least_1(d->Height >> level) : 0;
	uint64_t depth = d->Depth >> (is_layered(d) ? 0 : level);
	uint64_t most = UINT64_C(1) << 32, rows, bytes;

	if (width > most || height > most || depth > most)
		return UINT64_MAX;
	rows = height ? round_up(height, ROWS) : 1;
	bytes = round_up((width * texel_bits(d) + 7) / 8, ROW);
	if (__builtin_mul_overflow(bytes, rows, &bytes) ||
	    __builtin_mul_overflow(bytes, at_least_1(depth), &bytes))
		return UINT64_MAX;
	return bytes;
}

static uint64_t reckon(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < at_least_1(levels) && i < 32 &&
			     (i == 0 || (d->Width | d->Height) >> i ||
			      (!is_layered(d) && d->Depth >> i));
	     i++)
		if (__builtin_add_overflow(sum, level_bytes(d, i), &sum))
			return UINT64_MAX;
	return sum > UINT64_MAX - TOTAL ? UINT64_MAX : round_up(sum, TOTAL);
}

/* levels 0: no mipmapped array. False: the driver does not say. */
static bool ask_twin(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels,
		     CUdevice device, uint64_t *bytes)
{
	CUDA_ARRAY3D_DESCRIPTOR twin = *d;
	CUDA_ARRAY_MEMORY_REQUIREMENTS need = { 0 };
	CUmipmappedArray mipmapped;
	CUresult result;
	CUarray array;

	twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	if (levels) {
		if (!aq_real.cuMipmappedArrayGetMemoryRequirements ||
		    aq_real.cuMipmappedArrayCreate(&mipmapped, &twin, levels))
			return false;
		result = aq_real.cuMipmappedArrayGetMemoryRequirements(
			&need, mipmapped, device);
		aq_real.cuMipmappedArrayDestroy(mipmapped);
	} else {
		if (!aq_real.cuArrayGetMemoryRequirements ||
		    !aq_real.cuArray3DCreate_v2 ||
		    aq_real.cuArray3DCreate_v2(&array, &twin))
			return false;
		result = aq_real.cuArrayGetMemoryRequirements(&need, array,
							      device);
		aq_real.cuArrayDestroy(array);
	}
	*bytes = need.size;
	return result == CUDA_SUCCESS && need.size > 0;
}

/* An array of a limited GPU is about to be made. */
struct making {
	struct aq_hold hold;
	CUcontext context;
	uint64_t bytes; /* 0: not charged */
};

/* Whether to go on with the driver's call; else *result is to be returned. */
static bool begin(struct making *m, const CUDA_ARRAY3D_DESCRIPTOR *d,
		  unsigned levels, CUresult *result)
{
	struct aq_gpu *gpu = NULL;
	CUdevice device = 0;

	m->bytes = 0;
	*result = aq_gpu_current(&gpu);
	if (*result == CUDA_SUCCESS)
		*result = aq_real.cuCtxGetDevice(&device);
	if (*result == CUDA_SUCCESS)
		*result = aq_real.cuCtxGetCurrent(&m->context);
	if (*result != CUDA_SUCCESS)
		return false;
	if (!gpu || !d ||
	    d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return true;
	if (!ask_twin(d, levels, device, &m->bytes))
		m->bytes = reckon(d, levels);
	if (aq_reserve_or_trim(&m->hold, gpu, aq_array_units(m->bytes)))
		return true;
	*result = CUDA_ERROR_OUT_OF_MEMORY;
	return false;
}

/* After the call. False: it must be undone. */
static bool end(struct making *m, CUresult result, const void *handle)
{
	if (!m->bytes)
		return true;
	if (result == CUDA_SUCCESS &&
	    aq_arrays_add(&m->hold, handle, m->context, m->bytes))
		return true;
	aq_commit(&m->hold, 0);
	return result != CUDA_SUCCESS;
}

/* description: the caller's, as one of three dimensions; NULL stays NULL. */
#define ARRAY_CREATE(name, parameters, arguments, levels, destroy,          \
		     description)                                           \
	CUresult name parameters                                            \
	{                                                                   \
		struct making m;                                            \
		CUresult result;                                            \
									    \
		AQ_ENTER(name);                                             \
		if (!begin(&m, description, levels, &result))               \
			return result;                                      \
		result = aq_real.name arguments;                            \
		if (!end(&m, result, result ? NULL : (const void *)*array)) { \
			aq_real.destroy(*array);                            \
			return CUDA_ERROR_OUT_OF_MEMORY;                    \
		}                                                           \
		return result;                                              \
	}

#define AS_3D(d, ...) \
	((d) ? &(CUDA_ARRAY3D_DESCRIPTOR){ __VA_ARGS__ } : NULL)

ARRAY_CREATE(cuArrayCreate,
	     (CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d), (array, d),
	     0, cuArrayDestroy,
	     AS_3D(d, d->Width, d->Height, 0, d->Format, d->NumChannels, 0))
ARRAY_CREATE(cuArrayCreate_v2,
	     (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d), (array, d),
	     0, cuArrayDestroy,
	     AS_3D(d, d->Width, d->Height, 0, d->Format, d->NumChannels, 0))
ARRAY_CREATE(cuArray3DCreate,
	     (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d), (array, d),
	     0, cuArrayDestroy,
	     AS_3D(d, d->Width, d->Height, d->Depth, d->Format, d->NumChannels,
		   d->Flags))
ARRAY_CREATE(cuArray3DCreate_v2,
	     (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d), (array, d),
	     0, cuArrayDestroy, d)
ARRAY_CREATE(cuMipmappedArrayCreate,
	     (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
	      unsigned levels),
	     (array, d, levels), levels, cuMipmappedArrayDestroy, d)

#define ARRAY_DESTROY(name, type)                         \
	CUresult name(type array)                         \
	{                                                 \
		struct aq_array ours;                     \
		CUresult result;                          \
		bool known;                               \
							  \
		AQ_ENTER(name);                           \
		known = aq_arrays_take(array, &ours);     \
		aq_vmm_lock();                            \
		result = aq_real.name(array);             \
		if (result == CUDA_SUCCESS)               \
			aq_sparse_destroyed(array);       \
		aq_vmm_unlock();                          \
		if (known && result == CUDA_SUCCESS)      \
			aq_arrays_retire(&ours);          \
		else if (known)                           \
			aq_arrays_put_back(&ours);        \
		return result;                            \
	}

ARRAY_DESTROY(cuArrayDestroy, CUarray)
ARRAY_DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray)
