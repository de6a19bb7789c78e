/*
 * One thread captures graphs in global mode, the mode that any unsafe call of
 * another thread invalidates, while another launches more than its share allows.
 *
 *	capture <launches of the other thread>
 *
 * It begins at a line of input, and says when all was well; else, what failed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "../src/functions.h"

typedef struct CUgraph_st *CUgraph;

static void *driver;

static void *find(const char *name)
{
	void *function = dlsym(driver, name);

	if (!function) {
		fprintf(stderr, "capture: no %s\n", name);
		exit(1);
	}
	return function;
}

#define call(name, types, ...)                                             \
	do {                                                               \
		int result_ = ((int(*) types)find(#name))(__VA_ARGS__);    \
		if (result_) {                                             \
			fprintf(stderr, "capture: " #name ": %d\n", result_); \
			exit(1);                                           \
		}                                                          \
	} while (0)

static CUcontext context;
#define FUNCTIONS 256
static CUfunction functions[FUNCTIONS]; /* each is measured anew */
static long launches;
static int done;

#define KERNEL                                                             \
	(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,     \
	 unsigned, unsigned, CUstream, void **, void **)

static void launch(CUstream stream, long i)
{
	call(cuLaunchKernel, KERNEL, functions[i % FUNCTIONS], 8, 1, 1, 32, 1, 1, 0, stream,
	     NULL, NULL);
}

static void *work(void *unused)
{
	CUstream stream;

	call(cuCtxSetCurrent, (CUcontext), context);
	call(cuStreamCreate, (CUstream *, unsigned), &stream, 1);
	for (long i = 0; i < launches; i++)
		launch(stream, i);
	__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	return unused;
}

static void capture(CUstream stream)
{
	CUgraphExec exec;
	CUgraph graph;

	call(cuStreamBeginCapture_v2, (CUstream, int), stream, 0);
	for (long i = 0; i < 500; i++)
		launch(stream, i);
	call(cuStreamEndCapture, (CUstream, CUgraph *), stream, &graph);
	call(cuGraphInstantiateWithFlags,
	     (CUgraphExec *, CUgraph, unsigned long long), &exec, graph, 0);
	call(cuGraphExecDestroy, (CUgraphExec), exec);
	call(cuGraphDestroy, (CUgraph), graph);
}

int main(int argc, char **argv)
{
	pthread_t other;
	CUstream stream;
	CUmodule module;
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (argc != 2 || !driver)
		return 2;
	launches = atol(argv[1]);
	call(cuInit, (unsigned), 0);
	call(cuDevicePrimaryCtxRetain, (CUcontext *, int), &context, 0);
	call(cuCtxSetCurrent, (CUcontext), context);
	call(cuModuleLoadData, (CUmodule *, const void *), &module,
	     "aliquot-sim-module");
	for (int i = 0; i < FUNCTIONS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "kernel_%d", i);
		call(cuModuleGetFunction,
		     (CUfunction *, CUmodule, const char *), &functions[i],
		     module, name);
	}
	call(cuStreamCreate, (CUstream *, unsigned), &stream, 1);
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 2;
	pthread_create(&other, NULL, work, NULL);
	while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE))
		capture(stream);
	pthread_join(other, NULL);
	puts("well");
	return 0;
}
