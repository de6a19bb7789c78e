/*
 * A CUDA program that does to itself what daemons, shells and supervisors do.
 *
 *   process <trick> <report>
 *
 * It allocates 4 MiB, does the trick and takes the rest in pieces of 2 MiB. Then
 * it writes to the report file its pid, how many pieces it got, and how many of
 * its descriptors are the library's, and under what number the last one is; and
 * sleeps until it is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define DESCRIPTORS 4096

extern char **environ;

static const char *self, *report;
static bool ready;

static bool is_of(int fd, const char *name)
{
	char path[64], target[4096];
	ssize_t n, size = (ssize_t)strlen(name);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, target, sizeof(target));
	return n > size && !memcmp(target + n - size, name, (size_t)size);
}

/* The library's last descriptor, or -1. */
static int find_ours(int *count)
{
	int found = -1;

	*count = 0;
	for (int fd = 0; fd < DESCRIPTORS; fd++)
		if (is_of(fd, "/usage")) {
			found = fd;
			++*count;
		}
	return found;
}

static void limit_descriptors(rlim_t most)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = most;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static void begin(void)
{
	CUdeviceptr pointer;

	if (ready)
		return;
	ready = true;
	driver_load();
	driver_init();
	cuda.cuMemAlloc_v2(&pointer, 4 << 20);
}

static void fill(void)
{
	CUdeviceptr pointer;
	int count, pieces = 0, last;
	char line[64];
	int n, fd;

	begin();
	while (cuda.cuMemAlloc_v2(&pointer, 2 << 20) == CUDA_SUCCESS)
		pieces++;
	limit_descriptors(1024); /* for the report */
	last = find_ours(&count);
	n = snprintf(line, sizeof(line), "%d %d %d %d\n", (int)getpid(), pieces,
		     count, last);
	fd = open("report.new", O_CREAT | O_WRONLY | O_TRUNC, 0600);
	if (write(fd, line, (size_t)n) != n || rename("report.new", report))
		_exit(4);
	close(fd);
	for (;;)
		pause();
}

/* All but the driver's, which could do nothing more without. */
static void close_most(void)
{
	for (int fd = 0; fd < DESCRIPTORS; fd++)
		if (!is_of(fd, "/ledger") && !is_of(fd, "/compute"))
			close(fd);
}

static void vfork_exec(void)
{
	int status = -1;
	pid_t child;

	begin();
	child = vfork();
	if (child == 0) {
		execl(self, self, "nothing", report, NULL);
		_exit(127);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		_exit(4);
}

/* The next program inherits our descriptor, and with it our locks. */
static void exec_inheriting(void)
{
	int count;

	begin();
	if (fcntl(find_ours(&count), F_SETFD, 0))
		_exit(4);
	execl(self, self, "plain", report, NULL);
	_exit(127);
}

static void daemonise(void)
{
	if (fork())
		_exit(0);
	setsid();
	if (fork())
		_exit(0);
	syscall(SYS_close_range, 0u, ~0u, 0u);
	if (open("/dev/null", O_RDWR) != 0 || dup(0) != 1 || dup(0) != 2)
		_exit(4);
}

/* A monitoring library may ask NVML first: then our region is open already. */
static void daemonise_late(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
	int (*by_index)(unsigned, void **) = (int (*)(unsigned, void **))
		dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	int (*info)(void *, void *) = (int (*)(void *, void *))
		dlsym(nvml, "nvmlDeviceGetMemoryInfo");
	uint64_t figures[3];
	void *device;
	int count;

	if (init() || by_index(0, &device) || info(device, figures) ||
	    find_ours(&count) < 0)
		_exit(4);
	daemonise();
}

static void close_all_but_drivers(void)
{
	begin();
	close_most();
}

static void close_everything(void)
{
	begin();
	syscall(SYS_close_range, 0u, ~0u, 0u);
}

static void check_null(int fd)
{
	struct stat have, want;

	if (fstat(fd, &have) || stat("/dev/null", &want) ||
	    have.st_rdev != want.st_rdev)
		_exit(5);
}

/* Puts a file of its own where ours was; it must stay there. */
static void dup_over_ours(void)
{
	CUdeviceptr pointer;
	int count, fd;

	begin();
	fd = find_ours(&count);
	if (fd < 0 || dup2(open("/dev/null", O_RDWR), fd) != fd)
		_exit(4);
	if (cuda.cuMemAlloc_v2(&pointer, 1 << 30) != CUDA_ERROR_OUT_OF_MEMORY)
		_exit(5);
	check_null(fd);
}

static void lower_first(void)
{
	limit_descriptors(64);
}

static void lower_later(void)
{
	begin();
	limit_descriptors(3);
}

/* Raised, and used up to where ours are. */
static void raise_later(void)
{
	int count;

	limit_descriptors(128);
	begin();
	if (find_ours(&count) < 0)
		_exit(4);
	limit_descriptors(1024);
	for (int i = 0; i < 200; i++)
		if (open("/dev/null", O_RDONLY) < 0)
			_exit(5);
}

/* One is left, which the driver takes. */
static void exhaust(void)
{
	int fd;

	limit_descriptors(16);
	dlopen("libcuda.so.1", RTLD_NOW);
	while ((fd = open("/dev/null", O_RDONLY)) >= 0 && fd < 14)
		;
}

static void nothing(void)
{
}

static void leave(void)
{
	exit(0);
}

static const struct {
	const char *name;
	void (*trick)(void);
} tricks[] = {
	{ "nothing", leave },
	{ "plain", nothing },
	{ "vfork", vfork_exec },
	{ "exec", exec_inheriting },
	{ "daemon", daemonise },
	{ "daemon-late", daemonise_late },
	{ "close-most", close_all_but_drivers },
	{ "close-all", close_everything },
	{ "dup2", dup_over_ours },
	{ "lower-first", lower_first },
	{ "lower-later", lower_later },
	{ "raise-later", raise_later },
	{ "exhaust", exhaust },
};

int main(int argc, char **argv)
{
	if (argc != 3)
		return 3;
	alarm(120);
	self = argv[0];
	report = argv[2];
	for (unsigned i = 0; i < sizeof(tricks) / sizeof(tricks[0]); i++)
		if (!strcmp(argv[1], tricks[i].name)) {
			tricks[i].trick();
			fill();
		}
	return 3;
}
