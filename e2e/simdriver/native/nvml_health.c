/* How a card fares, as a test says in the fault file; well, if it says nothing. */
#include "nvml_state.h"

#define FIELD_RECOVERY_ACTION 230 /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */
#define TYPE_UNSIGNED_INT 1 /* NVML_VALUE_TYPE_UNSIGNED_INT */

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
				      nvmlFieldValue_t *values)
{
	ENTER_DEVICE(device, values);
	for (int i = 0; i < count; i++) {
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		if (values[i].fieldId != FIELD_RECOVERY_ACTION)
			continue;
		values[i].nvmlReturn = NVML_SUCCESS;
		values[i].valueType = TYPE_UNSIGNED_INT;
		values[i].value = fault_number(
			nvml.root, device->ledger_index, "recovery");
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
				       unsigned *uncorrected, unsigned *pending,
				       unsigned *failed)
{
	unsigned remap;

	ENTER_DEVICE(device, corrected);
	if (uncorrected == NULL || pending == NULL || failed == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	remap = fault_number(nvml.root, device->ledger_index, "remap");
	*corrected = 0;
	*uncorrected = remap != 0;
	*pending = remap == 1;
	*failed = remap == 2;
	return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
					  unsigned long long *reasons)
{
	ENTER_DEVICE(device, reasons);
	*reasons = fault_number(nvml.root, device->ledger_index, "slowdown");
	return NVML_SUCCESS;
}
