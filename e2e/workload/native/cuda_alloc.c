/*
 * cuda-alloc: takes device memory until it is refused, and says how much it got.
 *
 *	cuda-alloc [--device n|all] [--api alloc|async|vmm|managed|pitch]
 *		   [--step bytes | --bytes n] [--processes n] [--hold] [--once]
 *		   [--least bytes] [--most bytes] [--whole]
 *
 * It prints one JSON object a line. First a line for each device:
 *
 *	{"event":"device","pid":..,"device":0,"uuid":"GPU-..","name":"..",
 *	 "total":..,"memFree":..,"memTotal":..}
 *
 * total is cuDeviceTotalMem, memFree and memTotal are cuMemGetInfo. Then, for
 * each device that it was told to use, what it got:
 *
 *	{"event":"allocated","pid":..,"device":0,"uuid":"GPU-..","api":"alloc",
 *	 "bytes":..,"allocations":..,"result":"CUDA_ERROR_OUT_OF_MEMORY",
 *	 "memFree":..,"memTotal":..}
 *
 * result is what refused it, or CUDA_SUCCESS when it got all it was told to.
 * After a refusal the step is halved, down to 2 MiB, the driver's own
 * granularity, so that the limit is met to the last block.
 *
 *   --step bytes    the first step (default 256 MiB)
 *   --bytes n       allocate n bytes in one piece and no more
 *   --once          stop at the first refusal
 *   --least bytes   exit with 3 when it got less, of all devices together
 *   --most bytes    and when it got more
 *   --whole         and when of a device it did not get what that shows
 *   --device        an ordinal, or all (default 0)
 *   --processes n   n processes do all this at once
 *   --hold          keep what it got until SIGTERM or SIGINT; a line
 *                   {"event":"holding",..} says that it is there
 *
 * It exits with 0 when it came to an answer, 1 when CUDA failed otherwise
 * (a line "error" says where), 2 when it was called wrongly, 3 when it did not
 * get what it was told to expect (a line "unexpected" says what it got).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* From the reference manual of the CUDA driver API: what is called here. */
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr, CUmemHandle;
typedef void *CUcontext, *CUstream;
typedef struct {
	unsigned char bytes[16];
} CUuuid;
typedef struct {
	int type, id;
} CUmemLocation;
typedef struct {
	int type, handle_types;
	CUmemLocation location;
	void *win32;
	unsigned char flags[8];
} CUmemAllocationProp;
typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

enum {
	CUDA_SUCCESS = 0,
	MEM_LOCATION_DEVICE = 1,
	MEM_ALLOCATION_PINNED = 1,
	MEM_ACCESS_READWRITE = 3,
	MEM_ATTACH_GLOBAL = 1,
};

CUresult cuInit(unsigned);
CUresult cuGetErrorName(CUresult, const char **);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetCount(int *);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuMemCreate(CUmemHandle *, size_t, const CUmemAllocationProp *,
		     unsigned long long);
CUresult cuMemRelease(CUmemHandle);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr,
			     unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemHandle, unsigned long long);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);

#define MIB ((size_t)1 << 20)
#define GRANULARITY (2 * MIB)
#define MAX_PROCESSES 256

static const char *const apis[] = { "alloc", "async", "vmm", "managed",
				    "pitch" };

static struct {
	const char *api;
	size_t step, bytes, least, most;
	int device; /* -1: all */
	int processes;
	bool hold, once, whole;
} options = { .api = "alloc",
	      .step = 256 * MIB,
	      .most = SIZE_MAX,
	      .processes = 1 };

static const char *name_of(CUresult result)
{
	static char number[16];
	const char *name = NULL;

	if (cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL)
		return name;
	snprintf(number, sizeof(number), "%d", result);
	return number;
}

static void must(CUresult result, const char *call)
{
	if (result == CUDA_SUCCESS)
		return;
	printf("{\"event\":\"error\",\"pid\":%d,\"call\":\"%s\","
	       "\"result\":\"%s\"}\n",
	       getpid(), call, name_of(result));
	exit(1);
}
#define MUST(call) must(call, #call)

/* Physical memory, mapped; the handle is not needed after that. */
static CUresult alloc_vmm(CUdevice device, size_t bytes)
{
	CUmemAllocationProp properties = {
		.type = MEM_ALLOCATION_PINNED,
		.location = { MEM_LOCATION_DEVICE, device },
	};
	CUmemAccessDesc access = { properties.location, MEM_ACCESS_READWRITE };
	CUmemHandle handle;
	CUdeviceptr at;

	bytes = (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
	CUresult result = cuMemCreate(&handle, bytes, &properties, 0);
	if (result != CUDA_SUCCESS)
		return result;
	MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
	MUST(cuMemMap(at, bytes, 0, handle, 0));
	MUST(cuMemSetAccess(at, bytes, &access, 1));
	MUST(cuMemRelease(handle));
	return CUDA_SUCCESS;
}

static CUresult alloc_pitch(size_t bytes)
{
	const size_t width = 64 << 10; /* rows that need no padding */
	CUdeviceptr at;
	size_t pitch;

	if (bytes < width)
		return cuMemAllocPitch_v2(&at, &pitch, bytes, 1, 4);
	return cuMemAllocPitch_v2(&at, &pitch, width, bytes / width, 4);
}

static CUresult alloc_async(size_t bytes)
{
	CUdeviceptr at;
	CUresult result = cuMemAllocAsync(&at, bytes, NULL);

	return result != CUDA_SUCCESS ? result : cuStreamSynchronize(NULL);
}

static CUresult allocate(CUdevice device, size_t bytes)
{
	CUdeviceptr at;

	if (strcmp(options.api, "async") == 0)
		return alloc_async(bytes);
	if (strcmp(options.api, "vmm") == 0)
		return alloc_vmm(device, bytes);
	if (strcmp(options.api, "managed") == 0)
		return cuMemAllocManaged(&at, bytes, MEM_ATTACH_GLOBAL);
	if (strcmp(options.api, "pitch") == 0)
		return alloc_pitch(bytes);
	return cuMemAlloc_v2(&at, bytes);
}

static void print_string(const char *text)
{
	putchar('"');
	for (; *text != '\0'; text++) {
		if (*text == '"' || *text == '\\')
			putchar('\\');
		putchar(*text);
	}
	putchar('"');
}

static void print_uuid(CUdevice device)
{
	CUuuid uuid;

	MUST(cuDeviceGetUuid_v2(&uuid, device));
	printf("\"uuid\":\"GPU-");
	for (int i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		       uuid.bytes[i]);
	putchar('"');
}

static void print_memory(void)
{
	size_t available, total;

	MUST(cuMemGetInfo_v2(&available, &total));
	printf("\"memFree\":%zu,\"memTotal\":%zu", available, total);
}

static void use_device(CUdevice device)
{
	CUcontext context;

	MUST(cuDevicePrimaryCtxRetain(&context, device));
	MUST(cuCtxSetCurrent(context));
}

static void describe(CUdevice device)
{
	char name[256];
	size_t total;

	use_device(device);
	MUST(cuDeviceGetName(name, sizeof(name), device));
	MUST(cuDeviceTotalMem_v2(&total, device));
	printf("{\"event\":\"device\",\"pid\":%d,\"device\":%d,", getpid(),
	       device);
	print_uuid(device);
	printf(",\"name\":");
	print_string(name);
	printf(",\"total\":%zu,", total);
	print_memory();
	printf("}\n");
}

static void expect(size_t got, size_t least, size_t most)
{
	if (got >= least && got <= most)
		return;
	printf("{\"event\":\"unexpected\",\"pid\":%d,\"bytes\":%zu}\n",
	       getpid(), got);
	exit(3);
}

static size_t fill(CUdevice device)
{
	size_t step = options.bytes != 0 ? options.bytes : options.step;
	size_t got = 0, count = 0;
	CUresult refused = CUDA_SUCCESS;

	use_device(device);
	for (;;) {
		CUresult result = allocate(device, step);
		if (result == CUDA_SUCCESS) {
			got += step;
			count++;
			if (options.bytes != 0)
				break;
			continue;
		}
		refused = result;
		if (options.bytes != 0 || options.once || step <= GRANULARITY)
			break;
		step = step / 2 < GRANULARITY ? GRANULARITY : step / 2;
	}
	printf("{\"event\":\"allocated\",\"pid\":%d,\"device\":%d,", getpid(),
	       device);
	print_uuid(device);
	printf(",\"api\":\"%s\",\"bytes\":%zu,\"allocations\":%zu,"
	       "\"result\":\"%s\",",
	       options.api, got, count, name_of(refused));
	print_memory();
	printf("}\n");
	if (options.whole) {
		size_t total;

		MUST(cuDeviceTotalMem_v2(&total, device));
		expect(got, total / GRANULARITY * GRANULARITY, total);
	}
	return got;
}

static sigset_t ending(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	return set;
}

static void hold(void)
{
	sigset_t set = ending();
	int received;

	printf("{\"event\":\"holding\",\"pid\":%d}\n", getpid());
	sigwait(&set, &received);
}

static void run(void)
{
	sigset_t set = ending();
	size_t got = 0;
	int count;

	if (options.hold) /* whenever it is told to end, hold sees it */
		sigprocmask(SIG_BLOCK, &set, NULL);
	MUST(cuInit(0));
	MUST(cuDeviceGetCount(&count));
	for (int device = 0; device < count; device++)
		describe(device);
	for (int device = 0; device < count; device++)
		if (options.device < 0 || options.device == device)
			got += fill(device);
	expect(got, options.least, options.most);
	if (options.hold)
		hold();
}

static pid_t children[MAX_PROCESSES];

static void hand_on(int received)
{
	for (int i = 0; i < options.processes; i++)
		if (children[i] > 0)
			kill(children[i], received);
}

static void start_processes(char **argv)
{
	sigset_t set = ending();

	sigprocmask(SIG_BLOCK, &set, NULL);
	for (int i = 0; i < options.processes; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			sigprocmask(SIG_UNBLOCK, &set, NULL);
			execv("/proc/self/exe", argv);
			_exit(1);
		}
	}
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Starts this program again for each process, before any CUDA call: CUDA does
 * not survive a fork. A signal to end is handed on to all. */
static int run_processes(char **argv)
{
	struct sigaction action = { .sa_handler = hand_on,
				    .sa_flags = SA_RESTART };
	int worst = 0, status;

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	setenv("CUDA_ALLOC_CHILD", "1", 1);
	start_processes(argv);
	for (int i = 0; i < options.processes; i++) {
		if (children[i] < 0 || waitpid(children[i], &status, 0) < 0)
			return 1;
		int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		if (code > worst)
			worst = code;
	}
	return worst;
}

static size_t number(const char *text)
{
	char *end;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);

	if (*text == '\0' || *text == '-' || *end != '\0' || errno != 0 ||
	    value == 0) {
		fprintf(stderr, "cuda-alloc: %s is no positive number\n", text);
		exit(2);
	}
	return (size_t)value;
}

static bool known_api(const char *api)
{
	for (size_t i = 0; i < sizeof(apis) / sizeof(apis[0]); i++)
		if (strcmp(apis[i], api) == 0)
			return true;
	return false;
}

static void parse(int argc, char **argv)
{
	static const struct option names[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "api", required_argument, NULL, 'a' },
		{ "step", required_argument, NULL, 's' },
		{ "bytes", required_argument, NULL, 'b' },
		{ "processes", required_argument, NULL, 'p' },
		{ "hold", no_argument, NULL, 'h' },
		{ "once", no_argument, NULL, 'o' },
		{ "least", required_argument, NULL, 'l' },
		{ "most", required_argument, NULL, 'm' },
		{ "whole", no_argument, NULL, 'w' },
		{ NULL, 0, NULL, 0 },
	};
	int option;
	bool good = true;

	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (option) {
		case 'd':
			options.device = strcmp(optarg, "all") == 0 ?
						 -1 :
						 atoi(optarg);
			break;
		case 'a':
			options.api = optarg;
			good = good && known_api(optarg);
			break;
		case 's':
			options.step = number(optarg);
			break;
		case 'b':
			options.bytes = number(optarg);
			break;
		case 'p':
			options.processes = (int)number(optarg);
			good = good && number(optarg) <= MAX_PROCESSES;
			break;
		case 'h':
			options.hold = true;
			break;
		case 'o':
			options.once = true;
			break;
		case 'l':
			options.least = number(optarg);
			break;
		case 'm':
			options.most = number(optarg);
			break;
		case 'w':
			options.whole = true;
			break;
		default:
			good = false;
		}
	}
	if (good && optind == argc)
		return;
	fprintf(stderr, "usage: cuda-alloc [--device n|all] "
			"[--api alloc|async|vmm|managed|pitch] [--step bytes | "
			"--bytes n] [--processes n] [--hold] [--once] "
			"[--least bytes] [--most bytes] [--whole]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	parse(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (options.processes > 1 && getenv("CUDA_ALLOC_CHILD") == NULL)
		return run_processes(argv);
	run();
	return 0;
}
