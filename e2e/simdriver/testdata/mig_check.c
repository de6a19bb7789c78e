/*
 * mig_check devices: prints what CUDA says of each device that the process has, a
 * line a device: the UUIDs of both versions, bytes, multiprocessors, name.
 *
 * mig_check late: is initialised, and makes a context for each line that it reads.
 */
#include "cuda_api.h"

#include "check.h"

static void print_uuid(const CUuuid *uuid)
{
	for (unsigned i = 0; i < 16; i++)
		printf("%s%02x",
		       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		       (unsigned char)uuid->bytes[i]);
	printf(" ");
}

static void devices(void)
{
	int count = 0, processors = 0;
	CUuuid uuid, parent;
	char name[256];
	size_t total;

	CUresult result = cuInit(0);
	if (result == CUDA_ERROR_NO_DEVICE)
		return;
	OK(result);
	OK(cuDeviceGetCount(&count));
	for (CUdevice d = 0; d < count; d++) {
		OK(cuDeviceGetUuid_v2(&uuid, d));
		OK(cuDeviceGetUuid(&parent, d));
		OK(cuDeviceGetName(name, sizeof(name), d));
		OK(cuDeviceTotalMem_v2(&total, d));
		OK(cuDeviceGetAttribute(
			&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
			d));
		print_uuid(&uuid);
		print_uuid(&parent);
		printf("%zu %d %s\n", total, processors, name);
	}
}

static void late(void)
{
	char line[8];
	CUcontext context;

	OK(cuInit(0));
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		CUresult result = cuCtxCreate_v2(&context, 0, 0);
		if (result == CUDA_SUCCESS)
			OK(cuCtxDestroy_v2(context));
		printf("%d\n", result);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "devices", devices },
		{ "late", late },
	};

	return RUN_CASE(cases, argc, argv);
}
