/*
 * The client's commands for memory that processes share. File descriptors of
 * another process are opened through /proc; other handles are left in files of
 * the working directory.
 */
#include <fcntl.h>

static int theirs(unsigned long pid, unsigned long fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%lu/fd/%lu", pid, fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void create_shared(unsigned long slot, size_t bytes, int device)
{
	CUmemAllocationProp properties = { .type = 1,
					   .requestedHandleTypes = 1,
					   .location = { 1, device } };

	answer(cuda.cuMemCreate(&handles[slot], bytes, &properties, 0));
}

static void export_handle(unsigned long slot)
{
	int fd = -1;
	int result = cuda.cuMemExportToShareableHandle(&fd, handles[slot], 1, 0);

	printf("%d %d\n", result, fd);
}

static void export_pool(unsigned long slot)
{
	int fd = -1;
	int result = cuda.cuMemPoolExportToShareableHandle(&fd, pools[slot], 1,
							   0);

	printf("%d %d\n", result, fd);
}

static void note_path(char path[32], unsigned long number)
{
	snprintf(path, 32, "handle.%lu", number);
}

static int write_note(unsigned long number, const void *data, size_t size)
{
	char path[32];
	FILE *file;

	note_path(path, number);
	file = fopen(path, "w");
	return !file || fwrite(data, size, 1, file) != 1 || fclose(file) != 0;
}

static void read_note(unsigned long number, void *data, size_t size)
{
	char path[32];
	FILE *file;

	note_path(path, number);
	file = fopen(path, "r");
	if (!file || fread(data, size, 1, file) != 1)
		die("no such note");
	fclose(file);
}

static void pointer_verbs(const char *verb, unsigned long slot,
			  unsigned long number, unsigned long pool)
{
	CUipcMemHandle ipc = { { 0 } };
	CUmemPoolPtrExportData data = { { 0 } };
	int result;

	if (!strcmp(verb, "ipc-get")) {
		result = cuda.cuIpcGetMemHandle(&ipc, pointers[slot]);
		answer(result || write_note(number, &ipc, sizeof(ipc)));
	} else if (!strcmp(verb, "ipc-open")) {
		read_note(number, &ipc, sizeof(ipc));
		answer(cuda.cuIpcOpenMemHandle_v2(&pointers[slot], ipc, 1));
	} else if (!strcmp(verb, "pointer-export")) {
		result = cuda.cuMemPoolExportPointer(&data, pointers[slot]);
		answer(result || write_note(number, &data, sizeof(data)));
	} else {
		read_note(number, &data, sizeof(data));
		answer(cuda.cuMemPoolImportPointer(&pointers[slot], pools[pool],
						   &data));
	}
}

static void external(unsigned long slot, unsigned long long bytes)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = { .type = 1, .size = bytes };
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = { .size = bytes };
	CUexternalMemory memory;
	int result = cuda.cuImportExternalMemory(&memory, &from);

	if (!result)
		result = cuda.cuExternalMemoryGetMappedBuffer(&pointers[slot],
							      memory, &part);
	answer(result ? result : cuda.cuDestroyExternalMemory(memory));
}

/* A multicast object with handle b bound to it. */
static void multicast(unsigned long slot, unsigned long b, size_t bytes)
{
	CUmulticastObjectProp properties = { .numDevices = 1, .size = bytes };
	int result = cuda.cuMulticastCreate(&handles[slot], &properties);

	answer(result ? result
		      : cuda.cuMulticastBindMem(handles[slot], 0, handles[b], 0,
						bytes, 0));
}

static int share_verbs(const char *verb, unsigned long a, unsigned long b,
		       unsigned long c)
{
	void *fd = (void *)(intptr_t)-1;

	if (!strcmp(verb, "import") || !strcmp(verb, "pool-import"))
		fd = (void *)(intptr_t)theirs(b, c);
	if (!strcmp(verb, "create-shared"))
		create_shared(a, b, (int)c);
	else if (!strcmp(verb, "export"))
		export_handle(a);
	else if (!strcmp(verb, "import"))
		answer(cuda.cuMemImportFromShareableHandle(&handles[a], fd, 1));
	else if (!strcmp(verb, "pool-export"))
		export_pool(a);
	else if (!strcmp(verb, "pool-import"))
		answer(cuda.cuMemPoolImportFromShareableHandle(&pools[a], fd, 1,
							       0));
	else if (!strcmp(verb, "ipc-close"))
		answer(cuda.cuIpcCloseMemHandle(pointers[a]));
	else if (!strcmp(verb, "external"))
		external(a, b);
	else if (!strcmp(verb, "multicast"))
		multicast(a, b, c);
	else if (!strcmp(verb, "ipc-get") || !strcmp(verb, "ipc-open") ||
		 !strcmp(verb, "pointer-export") ||
		 !strcmp(verb, "pointer-import"))
		pointer_verbs(verb, a, b, c);
	else
		return 0;
	return 1;
}
