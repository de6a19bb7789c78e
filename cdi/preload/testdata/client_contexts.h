/* The client's commands for contexts. */

static CUcontext contexts[64];
static CUgreenCtx greens[64];

static int context_verbs(const char *verb, unsigned long a, unsigned long b)
{
	static int resources; /* any will do */
	CUdevResourceDesc description = (CUdevResourceDesc)(void *)&resources;
	CUcontext primary;
	CUdevice of = (CUdevice)b;

	if (!strcmp(verb, "context-v1"))
		answer(cuda.cuCtxCreate(&contexts[a], 0, of));
	else if (!strcmp(verb, "context-destroy-v1"))
		answer(cuda.cuCtxDestroy(contexts[a]));
	else if (!strcmp(verb, "context"))
		answer(cuda.cuCtxCreate_v2(&contexts[a], 0, of));
	else if (!strcmp(verb, "context-v3"))
		answer(cuda.cuCtxCreate_v3(&contexts[a], NULL, 0, 0, of));
	else if (!strcmp(verb, "context-v4"))
		answer(cuda.cuCtxCreate_v4(&contexts[a], NULL, 0, of));
	else if (!strcmp(verb, "context-destroy"))
		answer(cuda.cuCtxDestroy_v2(contexts[a]));
	else if (!strcmp(verb, "green"))
		answer(cuda.cuGreenCtxCreate(&greens[a], description, of, 1));
	else if (!strcmp(verb, "green-destroy"))
		answer(cuda.cuGreenCtxDestroy(greens[a]));
	else if (!strcmp(verb, "primary"))
		answer(cuda.cuDevicePrimaryCtxRetain(&primary, (CUdevice)a));
	else if (!strcmp(verb, "release-primary"))
		answer(cuda.cuDevicePrimaryCtxRelease_v2((CUdevice)a));
	else if (!strcmp(verb, "reset"))
		answer(cuda.cuDevicePrimaryCtxReset_v2((CUdevice)a));
	else if (!strcmp(verb, "limit"))
		answer(cuda.cuCtxSetLimit((int)a, b));
	else
		return 0;
	return 1;
}
