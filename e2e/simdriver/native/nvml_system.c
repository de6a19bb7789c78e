/* Facts about the driver as a whole. */
#include "nvml_state.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length)
{
	ENTER();
	return nvml_text(nvml.hardware.driver_version, text, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned length)
{
	ENTER();
	return nvml_text(nvml.hardware.nvml_version, text, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	ENTER();
	if (version == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = (int)nvml.hardware.cuda_version;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
	char path[64], command[64] = "";

	ENTER();
	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return NVML_ERROR_NOT_FOUND;
	if (fgets(command, sizeof(command), file) != NULL)
		command[strcspn(command, "\n")] = '\0';
	fclose(file);
	return nvml_text(command, name, length);
}
