/* The client's commands for arrays, all of 32-bit floats. */

static void *arrays[SLOTS]; /* mipmapped or not */

static CUDA_ARRAY3D_DESCRIPTOR description(unsigned long width,
					   unsigned long height,
					   unsigned long depth, unsigned flags)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){ width, height, depth, 0x20,
					  1,	 flags };
}

static int array_2d(unsigned long at, unsigned long width,
		    unsigned long height)
{
	CUDA_ARRAY_DESCRIPTOR d = { width, height, 0x20, 1 };

	return cuda.cuArrayCreate_v2((CUarray *)&arrays[at], &d);
}

static int array_3d(unsigned long at, unsigned long width,
		    unsigned long height, unsigned long depth, unsigned flags)
{
	CUDA_ARRAY3D_DESCRIPTOR d = description(width, height, depth, flags);

	return cuda.cuArray3DCreate_v2((CUarray *)&arrays[at], &d);
}

static int mipmaps(unsigned long at, unsigned long width, unsigned long height,
		   unsigned levels)
{
	CUDA_ARRAY3D_DESCRIPTOR d = description(width, height, 0, 0);

	return cuda.cuMipmappedArrayCreate((CUmipmappedArray *)&arrays[at], &d,
					   levels);
}

/* Maps handle b into tile c of array a, or unmaps what is there. */
static int tile(unsigned long a, unsigned long b, unsigned long c, int operation)
{
	CUarrayMapInfo info = {
		.resource = arrays[a],
		.subresource = { 0, 0, (unsigned)c, 0, 0, 1, 1, 1 },
		.memOperationType = operation,
		.memHandle = handles[b],
		.deviceBitMask = 1,
	};

	return cuda.cuMemMapArrayAsync(&info, 1, NULL);
}

static int array_verbs(const char *verb, unsigned long a, unsigned long b,
		       unsigned long c, unsigned long d)
{
	if (!strcmp(verb, "array"))
		answer(array_2d(a, b, c));
	else if (!strcmp(verb, "array3d"))
		answer(array_3d(a, b, c, d, 0));
	else if (!strcmp(verb, "layered"))
		answer(array_3d(a, b, c, d, 1));
	else if (!strcmp(verb, "sparse"))
		answer(array_3d(a, b, c, d, 0x40));
	else if (!strcmp(verb, "deferred"))
		answer(array_3d(a, b, c, d, 0x80));
	else if (!strcmp(verb, "mipmaps"))
		answer(mipmaps(a, b, c, (unsigned)d));
	else if (!strcmp(verb, "array-destroy"))
		answer(cuda.cuArrayDestroy(arrays[a]));
	else if (!strcmp(verb, "mipmaps-destroy"))
		answer(cuda.cuMipmappedArrayDestroy(arrays[a]));
	else if (!strcmp(verb, "tile"))
		answer(tile(a, b, c, 1));
	else if (!strcmp(verb, "tile-unmap"))
		answer(tile(a, b, c, 2));
	else
		return 0;
	return 1;
}
