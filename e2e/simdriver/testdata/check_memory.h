/* Checks of what takes device memory besides allocations. */

static void check_limits(void)
{
	CUcontext context;
	size_t value;

	start();
	EQUAL(used(), 0);
	OK(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
	EQUAL(value, 8 * MIB);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 9 * MIB));
	EQUAL(used(), BLOCK); /* the first 8 MiB are in the context's cost */
	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 4 * MIB));
	EQUAL(used(), 2 * BLOCK);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1 << 16));
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1));
	EQUAL(used(), BLOCK);
	EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, SIZE_MAX),
	      CUDA_ERROR_OUT_OF_MEMORY);
	EQUAL(cuCtxSetLimit(99, 1), CUDA_ERROR_UNSUPPORTED_LIMIT);
	EQUAL(cuCtxGetLimit(&value, -1), CUDA_ERROR_UNSUPPORTED_LIMIT);
	EQUAL(cuCtxGetLimit(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
	EQUAL(used(), BLOCK + 56 * MIB);
	OK(cuCtxDestroy_v2(context));
	EQUAL(used(), BLOCK);
	OK(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
	EQUAL(value, 1);
}

static void check_green(void)
{
	CUdevResourceDesc any = (CUdevResourceDesc)&failures;
	CUgreenCtx green[2];
	unsigned flags;
	int active;

	OK(cuInit(0));
	EQUAL(cuGreenCtxCreate(&green[0], NULL, 0, 1),
	      CUDA_ERROR_INVALID_VALUE);
	EQUAL(cuGreenCtxCreate(&green[0], any, 99, 1),
	      CUDA_ERROR_INVALID_DEVICE);
	OK(cuGreenCtxCreate(&green[0], any, 0, 1));
	OK(cuGreenCtxCreate(&green[1], any, 0, 1));
	OK(cuGreenCtxDestroy(green[0]));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(active);
	OK(cuGreenCtxDestroy(green[1]));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
}

static const CUDA_ARRAY3D_DESCRIPTOR image = { 1000, 1000, 0, 0x20, 1, 0 };

static CUDA_ARRAY3D_DESCRIPTOR image_with(unsigned flags)
{
	CUDA_ARRAY3D_DESCRIPTOR d = image;

	d.Flags = flags;
	return d;
}

static void check_arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR deferred =
		image_with(CUDA_ARRAY3D_DEFERRED_MAPPING);
	const CUDA_ARRAY_DESCRIPTOR small = { 512, 512, 0x20, 1 };
	CUDA_ARRAY_MEMORY_REQUIREMENTS need;
	CUmipmappedArray mipmapped;
	CUarray array, other[2];
	CUcontext context;

	start();
	EQUAL(used(), 0);
	OK(cuArray3DCreate_v2(&array, &image));
	EQUAL(used(), 2 * BLOCK);
	EQUAL(cuArrayGetMemoryRequirements(&need, array, 0),
	      CUDA_ERROR_INVALID_VALUE); /* only of a deferred one */
	OK(cuArrayDestroy(array));
	EQUAL(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
	EQUAL(used(), 0);
	OK(cuArray3DCreate_v2(&array, &deferred));
	OK(cuArrayGetMemoryRequirements(&need, array, 0));
	/* 63 sectors, 1000 rows: 61.5 pages. */
	EQUAL(need.size, 62 << 16);
	EQUAL(cuMipmappedArrayDestroy((CUmipmappedArray)array),
	      CUDA_ERROR_INVALID_HANDLE);
	OK(cuArrayDestroy(array));
	EQUAL(used(), 0);
	OK(cuMipmappedArrayCreate(&mipmapped, &deferred, 99));
	OK(cuMipmappedArrayGetMemoryRequirements(&need, mipmapped, 0));
	CHECK(need.size > 80 << 16 && need.size < 86 << 16);
	OK(cuMipmappedArrayDestroy(mipmapped));
	OK(cuArrayCreate_v2(&other[0], &small)); /* half a block each */
	OK(cuArrayCreate_v2(&other[1], &small));
	EQUAL(used(), BLOCK);
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuArrayCreate_v2(&array, &small));
	OK(cuMipmappedArrayCreate(&mipmapped, &image, 1));
	EQUAL(used(), 4 * BLOCK);
	OK(cuCtxDestroy_v2(context)); /* and with it what is in it */
	EQUAL(used(), BLOCK);
	OK(cuArrayDestroy(other[0]));
	OK(cuArrayDestroy(other[1]));
	EQUAL(used(), 0);
}

static void check_sparse(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR sparse = image_with(CUDA_ARRAY3D_SPARSE);
	CUmemAllocationProp properties = { .type = 1, .location = { 1, 0 } };
	CUmemGenericAllocationHandle handle;
	CUarrayMapInfo info = { .subresource = { 0, 0, 64 } };
	CUarray array;

	start();
	EQUAL(used(), 0);
	OK(cuArray3DCreate_v2(&array, &sparse));
	EQUAL(used(), 0);
	OK(cuMemCreate(&handle, BLOCK, &properties, 0));
	info.resource = array;
	info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
	info.memHandle = handle;
	OK(cuMemMapArrayAsync(&info, 1, NULL));
	OK(cuMemRelease(handle));
	EQUAL(used(), BLOCK);
	EQUAL(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
	OK(cuMemMapArrayAsync(&info, 1, NULL));
	EQUAL(used(), 0);
	OK(cuArrayDestroy(array));
	OK(cuArray3DCreate_v2(&array, &image));
	info.resource = array; /* has memory of its own */
	EQUAL(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuArrayDestroy(array));
}

/* What another process would do with these is tested in cdi/preload. */
static void check_shared_memory(void)
{
	CUmemAllocationProp properties = { .type = 1, .location = { 1, 0 } };
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = { .type = 1, .size = 8 * MIB };
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = { .size = 4 * MIB };
	CUmulticastObjectProp all = { .numDevices = 1, .size = BLOCK };
	CUmemGenericAllocationHandle handle, again, multicast;
	CUexternalMemory memory;
	CUipcMemHandle ipc;
	CUdeviceptr p, q;
	int fd;

	start();
	EQUAL(used(), 0);
	OK(cuMemCreate(&handle, BLOCK, &properties, 0));
	EQUAL(cuMemExportToShareableHandle(&fd, handle, 1, 0),
	      CUDA_ERROR_INVALID_VALUE); /* not asked for */
	OK(cuMemRelease(handle));
	properties.requestedHandleTypes = 1;
	OK(cuMemCreate(&handle, BLOCK, &properties, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
	OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, 1));
	EQUAL(again, handle);
	EQUAL(cuMemImportFromShareableHandle(&again, (void *)0, 1),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuMulticastCreate(&multicast, &all));
	OK(cuMulticastAddDevice(multicast, 0));
	OK(cuMulticastBindMem(multicast, 0, handle, 0, BLOCK, 0));
	EQUAL(used(), BLOCK);
	OK(cuMemRelease(multicast));
	OK(cuMemRelease(handle));
	EQUAL(used(), BLOCK);
	OK(cuMemRelease(handle));
	EQUAL(used(), 0);
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	OK(cuIpcGetMemHandle(&ipc, p));
	EQUAL(cuIpcOpenMemHandle_v2(&q, ipc, 1), CUDA_ERROR_INVALID_CONTEXT);
	EQUAL(cuIpcCloseMemHandle(p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	OK(cuImportExternalMemory(&memory, &from));
	part.offset = 5 * MIB;
	EQUAL(cuExternalMemoryGetMappedBuffer(&p, memory, &part),
	      CUDA_ERROR_INVALID_VALUE);
	part.offset = 4 * MIB;
	OK(cuExternalMemoryGetMappedBuffer(&p, memory, &part));
	EQUAL(used(), 0);
	OK(cuMemFree_v2(p));
	OK(cuDestroyExternalMemory(memory));
}

/* With the second cuMemAlloc_v2 to fail, and every cuMemCreate. */
static void check_call_faults(void)
{
	CUmemAllocationProp properties = { .type = 1, .location = { 1, 0 } };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p[3];
	size_t pitch;

	start();
	EQUAL(used(), 0);
	OK(cuMemAlloc_v2(&p[0], BLOCK));
	OK(cuMemAllocPitch_v2(&p[1], &pitch, 512, 4096, 4)); /* another */
	EQUAL(cuMemAlloc_v2(&p[2], BLOCK), 719);
	OK(cuMemAlloc_v2(&p[2], BLOCK));
	EQUAL(cuMemCreate(&handle, BLOCK, &properties, 0), 700);
	EQUAL(cuMemCreate(&handle, BLOCK, &properties, 0), 700);
	EQUAL(used(), 3 * BLOCK);
	EQUAL(cuCtxDestroy_v2(NULL), CUDA_ERROR_INVALID_CONTEXT);
}

static void check_own_pointers(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUdeviceptr p;
	int status;

	start();
	alloc = (CUresult(*)(CUdeviceptr *, size_t))address("cuMemAlloc", 13000,
							    0, &status);
	CHECK((void *)alloc != dlsym(driver, "cuMemAlloc_v2"));
	CHECK((void *)alloc == address("cuMemAlloc", 3020, 2, &status));
	OK(alloc(&p, BLOCK));
	OK(cuMemFree_v2(p));
}
