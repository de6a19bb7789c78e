/*
 * Reads the flat description that the Go side writes: one "key value" a line;
 * a line "gpu <n>" begins a card, and what follows belongs to it; a line
 * "mig_profile ..." is one of its MIG profiles. The Go side has checked it, so an
 * unknown key is a mismatch of versions and refused.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, U32, U64 };

struct field {
	const char *key;
	enum kind kind;
	size_t offset, size;
};

#define FIELD(type, name, kind) \
	{ #name, kind, offsetof(struct type, name), \
	  sizeof(((struct type *)0)->name) }

static const struct field hardware_fields[] = {
	FIELD(sim_hardware, driver_version, TEXT),
	FIELD(sim_hardware, nvml_version, TEXT),
	FIELD(sim_hardware, cuda_version, U32),
	{ NULL, TEXT, 0, 0 },
};

static const struct field gpu_fields[] = {
	FIELD(sim_gpu, name, TEXT),
	FIELD(sim_gpu, uuid, TEXT),
	FIELD(sim_gpu, serial, TEXT),
	FIELD(sim_gpu, pci_bus_id, TEXT),
	FIELD(sim_gpu, pci_domain, U32),
	FIELD(sim_gpu, pci_bus, U32),
	FIELD(sim_gpu, pci_device, U32),
	FIELD(sim_gpu, pci_device_id, U32),
	FIELD(sim_gpu, pci_subsystem_id, U32),
	FIELD(sim_gpu, minor, U32),
	FIELD(sim_gpu, memory_total, U64),
	FIELD(sim_gpu, memory_reserved, U64),
	FIELD(sim_gpu, context_bytes, U64),
	FIELD(sim_gpu, slice_ns, U64),
	FIELD(sim_gpu, cc_major, U32),
	FIELD(sim_gpu, cc_minor, U32),
	FIELD(sim_gpu, architecture, U32),
	FIELD(sim_gpu, brand, U32),
	FIELD(sim_gpu, multiprocessors, U32),
	FIELD(sim_gpu, cores, U32),
	FIELD(sim_gpu, mig_max, U32),
	FIELD(sim_gpu, virtualization, U32),
	{ NULL, TEXT, 0, 0 },
};

static bool set_field(const struct field *fields, void *base, const char *key,
		      const char *value)
{
	for (; fields->key != NULL; fields++) {
		if (strcmp(fields->key, key) != 0)
			continue;
		char *at = (char *)base + fields->offset;
		if (fields->kind == TEXT)
			return (size_t)snprintf(at, fields->size, "%s", value) <
			       fields->size;
		char *end;
		uint64_t number = strtoull(value, &end, 0);
		if (*end != '\0' || end == value)
			return false;
		memcpy(at, &number, fields->size); /* little endian */
		return true;
	}
	return false;
}

/* Where the profile may start: "0,2,4". */
static bool parse_starts(struct sim_mig_profile *profile, char *text)
{
	for (char *start; (start = strsep(&text, ",")) != NULL;) {
		if (profile->start_count == SIM_MAX_STARTS)
			return false;
		profile->starts[profile->start_count++] =
			(unsigned)strtoul(start, NULL, 10);
	}
	return true;
}

static bool parse_profile(struct sim_gpu *gpu, const char *value)
{
	struct sim_mig_profile p = { .start_count = 0 };
	char starts[64];

	if (gpu->profile_count == SIM_MAX_PROFILES ||
	    sscanf(value,
		   "%31s %u %u %u %u %ju %u %u %u %u %u %u %u %u %u %63s",
		   p.name, &p.index, &p.id, &p.slices, &p.instances,
		   (uintmax_t *)&p.memory_mib, &p.multiprocessors,
		   &p.copy_engines, &p.decoders, &p.encoders, &p.jpeg, &p.ofa,
		   &p.p2p, &p.graphics, &p.size, starts) != 16 ||
	    !parse_starts(&p, starts))
		return false;
	gpu->profiles[gpu->profile_count++] = p;
	return true;
}

static bool parse_line(struct sim_hardware *hardware, char *line)
{
	line[strcspn(line, "\n")] = '\0';
	if (line[0] == '\0' || line[0] == '#')
		return true;
	char *value = strchr(line, ' ');
	if (value == NULL)
		return false;
	*value++ = '\0';
	if (strcmp(line, "gpu") == 0) {
		if (hardware->gpu_count == SIM_MAX_GPUS ||
		    strtoul(value, NULL, 10) != hardware->gpu_count)
			return false;
		hardware->gpu_count++;
		return true;
	}
	if (hardware->gpu_count == 0)
		return set_field(hardware_fields, hardware, line, value);
	struct sim_gpu *gpu = &hardware->gpus[hardware->gpu_count - 1];
	if (strcmp(line, "mig_profile") == 0)
		return parse_profile(gpu, value);
	return set_field(gpu_fields, gpu, line, value);
}

bool sim_hardware_load(const char *root, struct sim_hardware *hardware)
{
	char path[SIM_PATH_MAX], line[256];

	memset(hardware, 0, sizeof(*hardware));
	if (!sim_path(path, root, "run/nvidia-sim/hardware"))
		return false;
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return false;
	bool good = true;
	while (good && fgets(line, sizeof(line), file) != NULL)
		good = parse_line(hardware, line);
	fclose(file);
	return good && hardware->driver_version[0] != '\0';
}
