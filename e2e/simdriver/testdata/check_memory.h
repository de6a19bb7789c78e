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
