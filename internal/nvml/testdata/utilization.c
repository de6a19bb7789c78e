/*
 * As much of NVML as it takes to ask what processes use. What it says depends on
 * the GPU's name, so that one process can see all that drivers are known to do.
 */
#include <stdint.h>
#include <string.h>

enum { SUCCESS, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7,
       UNINITIALIZED = 1, RESTARTED = 9, VERSION_MISMATCH = 25 };

struct old { uint32_t pid; uint64_t time; uint32_t sm, mem, enc, dec; };
struct new { uint64_t time; uint32_t pid, sm, mem, enc, dec, jpg, ofa; };
struct news { uint32_t version, count; uint64_t since; struct new *array; };

struct device { char name[64]; };

static struct device devices[16];
static int open_count, inits;

int nvmlInit_v2(void) { open_count++; inits++; return SUCCESS; }
int nvmlShutdown(void) { return open_count-- > 0 ? SUCCESS : UNINITIALIZED; }
const char *nvmlErrorString(int result) { (void)result; return "error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
	if (open_count <= 0)
		return UNINITIALIZED;
	for (int i = 0; i < 16; i++) {
		if (devices[i].name[0] == '\0')
			strncpy(devices[i].name, uuid, 63);
		if (strcmp(devices[i].name, uuid) == 0) {
			*device = &devices[i];
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

static int is(struct device *device, const char *name)
{
	return strcmp(device->name, name) == 0;
}

/* Samples 7 of pid 70 with 40 percent and 8 of pid 80 with 50. */
int nvmlDeviceGetProcessUtilization(struct device *device, struct old *array,
				    uint32_t *count, uint64_t since)
{
	uint32_t room = array ? *count : 0;

	if (open_count <= 0)
		return UNINITIALIZED;
	if (is(device, "restarted") && inits == 1)
		return RESTARTED;
	if (is(device, "mig") || is(device, "new-only"))
		return UNSUPPORTED;
	if (since >= 8)
		return NOT_FOUND;
	*count = since < 7 ? 2 : 1;
	if (room < *count)
		return SMALL;
	for (uint32_t i = 0; i < *count; i++) {
		uint32_t n = since < 7 ? 7 + i : 8;

		array[i] = (struct old){ .pid = n * 10, .time = n };
		if (!is(device, "blackwell"))
			array[i].sm = n == 7 ? 40 : 50;
	}
	return SUCCESS;
}

/* The same with 5 percent more, and room for a third that is not filled. */
int nvmlDeviceGetProcessesUtilizationInfo(struct device *device,
					  struct news *infos)
{
	uint32_t room = infos->array ? infos->count : 0;

	if (open_count <= 0)
		return UNINITIALIZED;
	if (infos->version != (sizeof(*infos) | 1 << 24))
		return VERSION_MISMATCH;
	if (is(device, "restarted") && inits == 1)
		return RESTARTED;
	if (is(device, "mig") || is(device, "old-only"))
		return UNSUPPORTED;
	if (infos->since >= 8)
		return NOT_FOUND;
	infos->count = 3;
	if (room < 3)
		return SMALL;
	memset(infos->array, 0, 3 * sizeof(infos->array[0]));
	for (int i = infos->since < 7 ? 0 : 1; i < 2; i++)
		infos->array[i] = (struct new){ .time = 7 + i, .pid = 70 + 10 * i,
						.sm = i ? 55 : 45 };
	return SUCCESS;
}

/* For the test: whether anybody has NVML open, and how often it was opened. */
int aliquot_test_open(void) { return open_count; }
int aliquot_test_inits(void) { return inits; }
