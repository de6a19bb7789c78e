/* Finding devices, and the facts of each. */
#include "nvml_state.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	ENTER();
	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nvml.device_count;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t found(unsigned index, nvmlDevice_t *device)
{
	if (fault_gpu_lost(nvml.root, nvml.devices[index].ledger_index))
		return NVML_ERROR_GPU_IS_LOST;
	*device = &nvml.devices[index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	ENTER();
	if (device == NULL || index >= nvml.device_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return found(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	ENTER();
	if (uuid == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < nvml.device_count; i++)
		if (strcmp(nvml.devices[i].gpu->uuid, uuid) == 0)
			return found(i, device);
	for (unsigned i = 0; i < nvml.device_count; i++)
		if (mig_device_of_uuid(&nvml.devices[i], uuid, device) ==
		    NVML_SUCCESS)
			return NVML_SUCCESS;
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial,
					 nvmlDevice_t *device)
{
	ENTER();
	if (serial == NULL || serial[0] == '\0' || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < nvml.device_count; i++)
		if (strcmp(nvml.devices[i].gpu->serial, serial) == 0)
			return found(i, device);
	return NVML_ERROR_NOT_FOUND;
}

/* Takes four digits of the domain or eight, in either case. */
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id,
					      nvmlDevice_t *device)
{
	unsigned domain, bus, slot;

	ENTER();
	if (id == NULL || device == NULL ||
	    sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < nvml.device_count; i++) {
		const struct sim_gpu *gpu = nvml.devices[i].gpu;
		if (gpu->pci_domain == domain && gpu->pci_bus == bus &&
		    gpu->pci_device == slot)
			return found(i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned length)
{
	ENTER_ANY(device, text);
	if (device->compute != NULL)
		return mig_device_name(device, text, length);
	return nvml_text(device->gpu->name, text, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length)
{
	ENTER_ANY(device, text);
	if (device->compute != NULL)
		return mig_device_uuid(device, text, length);
	return nvml_text(device->gpu->uuid, text, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *text,
				 unsigned length)
{
	ENTER_DEVICE(device, text);
	if (device->gpu->serial[0] == '\0')
		return NVML_ERROR_NOT_SUPPORTED;
	return nvml_text(device->gpu->serial, text, length);
}

#define GETTER(name, enter, expression) \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *value) \
	{ \
		enter(device, value); \
		*value = (expression); \
		return NVML_SUCCESS; \
	} \
	_Static_assert(1, #name)

GETTER(nvmlDeviceGetIndex, ENTER_ANY,
       device->compute == NULL ? device->index : mig_device_index(device));
GETTER(nvmlDeviceGetMinorNumber, ENTER_DEVICE, device->gpu->minor);
GETTER(nvmlDeviceGetArchitecture, ENTER_ANY, device->gpu->architecture);
GETTER(nvmlDeviceGetBrand, ENTER_ANY, device->gpu->brand);
GETTER(nvmlDeviceGetNumGpuCores, ENTER_DEVICE, device->gpu->cores);
GETTER(nvmlDeviceGetVirtualizationMode, ENTER_DEVICE,
       device->gpu->virtualization);
GETTER(nvmlDeviceGetMultiGpuBoard, ENTER_DEVICE, 0);
GETTER(nvmlDeviceGetComputeMode, ENTER_ANY, 0); /* default: many processes */
GETTER(nvmlDeviceGetPersistenceMode, ENTER_DEVICE, 1); /* enabled */

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
						int *minor)
{
	ENTER_ANY(device, major);
	if (minor == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = (int)device->gpu->cc_major;
	*minor = (int)device->gpu->cc_minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	ENTER_DEVICE(device, pci);
	const struct sim_gpu *gpu = device->gpu;
	memset(pci, 0, sizeof(*pci));
	snprintf(pci->busId, sizeof(pci->busId), "%s", gpu->pci_bus_id);
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0",
		 gpu->pci_domain & 0xffff, gpu->pci_bus & 0xff,
		 gpu->pci_device & 0xff);
	pci->domain = gpu->pci_domain;
	pci->bus = gpu->pci_bus;
	pci->device = gpu->pci_device;
	pci->pciDeviceId = gpu->pci_device_id;
	pci->pciSubSystemId = gpu->pci_subsystem_id;
	return NVML_SUCCESS;
}
