/* nvmlInit, and what every call asks first. */
#include "nvml_handle.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct nvml_process nvml;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool have_control_node(void)
{
	char path[SIM_PATH_MAX];
	struct stat st;

	return sim_path(path, nvml.root, "dev/nvidiactl") &&
	       stat(path, &st) == 0 && S_ISCHR(st.st_mode);
}

static nvmlReturn_t find_devices(void)
{
	if (!have_control_node() ||
	    !sim_hardware_load(nvml.root, &nvml.hardware))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	handles_drop();
	nvml.device_count = 0;
	for (unsigned i = 0; i < nvml.hardware.gpu_count; i++) {
		const struct sim_gpu *gpu = &nvml.hardware.gpus[i];
		if (!sim_gpu_visible(nvml.root, gpu))
			continue;
		unsigned index = nvml.device_count++;
		nvml.devices[index] = (struct nvmlDevice_st){
			gpu, i, index, NULL
		};
	}
	return NVML_SUCCESS;
}

static nvmlReturn_t init(const char *function)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (!sim_root_of(&nvml, nvml.root))
		result = NVML_ERROR_DRIVER_NOT_LOADED;
	int fault = fault_of(nvml.root, function);
	if (fault != 0)
		result = (nvmlReturn_t)fault;
	if (result == NVML_SUCCESS && nvml.references == 0)
		result = find_devices();
	if (result == NVML_SUCCESS)
		nvml.references++;
	pthread_mutex_unlock(&lock);
	return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return init(__func__);
}

nvmlReturn_t nvmlInit(void)
{
	return init(__func__);
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	(void)flags; /* NO_GPUS and NO_ATTACH: nothing fails for want of a GPU */
	return init(__func__);
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (nvml.references == 0)
		result = NVML_ERROR_UNINITIALIZED;
	else
		nvml.references--;
	pthread_mutex_unlock(&lock);
	return result;
}

nvmlReturn_t nvml_enter(const char *function)
{
	if (nvml.references == 0)
		return NVML_ERROR_UNINITIALIZED;
	return (nvmlReturn_t)fault_of(nvml.root, function);
}

nvmlReturn_t nvml_enter_device(const char *function, nvmlDevice_t device)
{
	nvmlReturn_t result = nvml_enter(function);

	if (result != NVML_SUCCESS)
		return result;
	/* With which error the real one refuses a MIG device is not known. */
	if (nvml_is_mig_device(device))
		return NVML_ERROR_NOT_SUPPORTED;
	if (device < nvml.devices ||
	    device >= nvml.devices + nvml.device_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return fault_gpu_lost(nvml.root, device->ledger_index) ?
		       NVML_ERROR_GPU_IS_LOST :
		       NVML_SUCCESS;
}

nvmlReturn_t nvml_text(const char *from, char *to, unsigned length)
{
	if (to == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(from) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, from);
	return NVML_SUCCESS;
}

/* Works before nvmlInit. */
const char *nvmlErrorString(nvmlReturn_t result)
{
	static const struct {
		nvmlReturn_t result;
		const char *text;
	} texts[] = {
		{ NVML_SUCCESS, "Success" },
		{ NVML_ERROR_UNINITIALIZED, "Uninitialized" },
		{ NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument" },
		{ NVML_ERROR_NOT_SUPPORTED, "Not Supported" },
		{ NVML_ERROR_NO_PERMISSION, "Insufficient Permissions" },
		{ NVML_ERROR_NOT_FOUND, "Not Found" },
		{ NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size" },
		{ NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded" },
		{ NVML_ERROR_TIMEOUT, "Timeout" },
		{ NVML_ERROR_GPU_IS_LOST, "GPU is lost" },
		{ NVML_ERROR_RESET_REQUIRED, "GPU requires reset" },
		{ NVML_ERROR_IN_USE, "In use by another client" },
		{ NVML_ERROR_MEMORY, "Insufficient Memory" },
		{ NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources" },
		{ NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
		  "Argument version mismatch" },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].result == result)
			return texts[i].text;
	return "Unknown Error";
}
