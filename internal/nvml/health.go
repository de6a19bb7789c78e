package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"aliquot.dev/aliquot/internal/gpu"
)

// healthOf asks how a GPU fares now. What a driver or GPU cannot tell is left out. Only calls are made that every driver
// still in use has: go-nvml binds lazily, and a call that is not there ends the process.
func healthOf(handle nvml.Device) (gpu.Health, error) {
	var health gpu.Health
	action, ok, err := recoveryAction(handle)
	if err != nil {
		return gpu.Health{}, err
	}
	fault, faulty := recoveryFault(action)
	switch {
	case ok && faulty:
		health.Faults = append(health.Faults, fault)
	case ok:
		health.Sound = true
	}
	remapped, err := remapFaults(handle)
	if err != nil {
		return gpu.Health{}, err
	}
	health.Faults = append(health.Faults, remapped...)
	reasons, ret := handle.GetCurrentClocksThrottleReasons() // drivers before 535 have no other
	if ret == nvml.SUCCESS && reasons&nvml.ClocksThrottleReasonHwThermalSlowdown != 0 {
		health.Faults = append(health.Faults, gpu.Fault{Kind: "thermal-slowdown", Severity: gpu.Informs, Note: "it is too hot and slowed down"})
	}
	return health, answers(ret, "read clocks")
}

// answers turns what a GPU says to a question that it may not support into an error if it does not answer at all.
func answers(ret nvml.Return, what string) error {
	if errors.Is(ret, nvml.ERROR_GPU_IS_LOST) {
		return fmt.Errorf("%s: %w", what, ret)
	}
	return nil
}

// recoveryAction is what the driver says the GPU needs, false if it cannot tell.
func recoveryAction(handle nvml.Device) (nvml.DeviceGpuRecoveryAction, bool, error) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := handle.GetFieldValues(values)
	if err := answers(ret, "read recovery action"); err != nil {
		return 0, false, err
	}
	if ret != nvml.SUCCESS || nvml.Return(values[0].NvmlReturn) != nvml.SUCCESS {
		return 0, false, nil
	}
	return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:])), true, nil
}

// recoveryFault is from NVIDIA's GPU memory error management guide, "Error Recovery and Response Flags"
// (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html). A GPU whose links to its
// peers are to be drained still computes.
func recoveryFault(action nvml.DeviceGpuRecoveryAction) (gpu.Fault, bool) {
	switch action {
	case nvml.GPU_RECOVERY_ACTION_NONE:
		return gpu.Fault{}, false
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET, nvml.GPU_RECOVERY_ACTION_BUS_RESET:
		return gpu.Fault{Kind: "needs-reset", Severity: gpu.Fatal, Note: "it has to be reset"}, true
	case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT, nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return gpu.Fault{Kind: "needs-reboot", Severity: gpu.Fatal, Note: "the node has to be rebooted"}, true
	case nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return gpu.Fault{Kind: "needs-drain-and-reset", Severity: gpu.Degraded, Note: "it has to be reset when its work is done"}, true
	default:
		return gpu.Fault{Kind: fmt.Sprintf("needs-recovery-%d", action), Severity: gpu.Degraded,
			Note: fmt.Sprintf("it needs recovery action %d of NVML", action)}, true
	}
}

// remapFaults are from the same guide: work goes on as before while a row waits to be remapped, and a GPU that could not
// remap one is to be replaced. GPUs before Ampere have no such rows.
func remapFaults(handle nvml.Device) ([]gpu.Fault, error) {
	_, _, pending, failed, ret := handle.GetRemappedRows()
	switch {
	case ret != nvml.SUCCESS:
		return nil, answers(ret, "read remapped rows")
	case failed:
		return []gpu.Fault{{Kind: "row-remap-failure", Severity: gpu.Degraded, Note: "a row of its memory could not be remapped"}}, nil
	case pending:
		return []gpu.Fault{{Kind: "row-remap-pending", Severity: gpu.Informs, Note: "a row of its memory is remapped at the next reset"}}, nil
	}
	return nil, nil
}
