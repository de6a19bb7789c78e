/* The client's commands for graphs with memory. */

static CUgraph graphs[64];
static CUgraphNode last_nodes[64]; /* on which the next depends */
static CUgraphExec execs[64];
static CUstream captured[64]; /* the stream that a graph was captured from */

static int add_alloc(unsigned long graph, unsigned long pointer, size_t bytes,
		     int device)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {
		.poolProps = { .allocType = 1, .location = { 1, device } },
		.bytesize = bytes,
	};
	CUgraphNode *last = &last_nodes[graph];
	int result = cuda.cuGraphAddMemAllocNode(last, graphs[graph],
						 *last ? last : NULL, !!*last,
						 &p);

	pointers[pointer] = p.dptr;
	return result;
}

static int add_free(unsigned long graph, unsigned long pointer)
{
	CUgraphNode *last = &last_nodes[graph];

	return cuda.cuGraphAddMemFreeNode(last, graphs[graph],
					  *last ? last : NULL, !!*last,
					  pointers[pointer]);
}

/* Captures an allocation, and its end if it is to have one. */
static int capture(unsigned long graph, size_t bytes, int and_free)
{
	CUdeviceptr p;
	int result = cuda.cuStreamCreate(&captured[graph], 1);
	CUstream stream = captured[graph];

	if (!result)
		result = cuda.cuStreamBeginCapture_v2(stream, 0);
	if (!result)
		result = cuda.cuMemAllocAsync(&p, bytes, stream);
	if (!result && and_free)
		result = cuda.cuMemFreeAsync(p, stream);
	return result ? result
		      : cuda.cuStreamEndCapture(stream, &graphs[graph]);
}

static int instantiate(unsigned long exec, unsigned long graph,
		       unsigned long how)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS p = { .flags = how == 3 ? 2 : 0 };

	if (how == 0)
		return cuda.cuGraphInstantiate_v2(&execs[exec], graphs[graph],
						  NULL, NULL, 0);
	if (how == 1)
		return cuda.cuGraphInstantiateWithFlags(&execs[exec],
							graphs[graph], 0);
	return cuda.cuGraphInstantiateWithParams(&execs[exec], graphs[graph],
						 &p);
}

static int graph_verbs(const char *verb, unsigned long a, unsigned long b,
		       unsigned long c, unsigned long d)
{
	if (!strcmp(verb, "graph")) {
		last_nodes[a] = NULL;
		answer(cuda.cuGraphCreate(&graphs[a], 0));
	} else if (!strcmp(verb, "graph-alloc")) {
		answer(add_alloc(a, b, c, (int)d));
	} else if (!strcmp(verb, "graph-free")) {
		answer(add_free(a, b));
	} else if (!strcmp(verb, "capture")) {
		answer(capture(a, b, (int)c));
	} else if (!strcmp(verb, "graph-destroy")) {
		answer(cuda.cuGraphDestroy(graphs[a]));
	} else if (!strcmp(verb, "instantiate")) {
		answer(instantiate(a, b, c));
	} else if (!strcmp(verb, "upload")) {
		answer(cuda.cuGraphUpload(execs[a], NULL));
	} else if (!strcmp(verb, "launch")) {
		answer(cuda.cuGraphLaunch(execs[a], NULL));
	} else if (!strcmp(verb, "exec-destroy")) {
		answer(cuda.cuGraphExecDestroy(execs[a]));
	} else if (!strcmp(verb, "graph-trim")) {
		answer(cuda.cuDeviceGraphMemTrim((CUdevice)a));
	} else {
		return 0;
	}
	return 1;
}
