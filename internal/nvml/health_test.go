package nvml

import (
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/internal/gpu"
)

func TestHealthIsWhatTheDriverSays(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	driver := root(t, "t4x4")
	node := New(Driver{Root: driver.Path, RootMount: driver.Path})
	for name, tc := range map[string]struct {
		faults []simdriver.Fault
		want   gpu.Health
	}{
		"well":           {nil, gpu.Health{Sound: true}},
		"reset":          {[]simdriver.Fault{simdriver.Recovery(1, 1)}, faults("needs-reset", gpu.Fatal)},
		"reboot":         {[]simdriver.Fault{simdriver.Recovery(1, 2)}, faults("needs-reboot", gpu.Fatal)},
		"drain":          {[]simdriver.Fault{simdriver.Recovery(1, 4)}, faults("needs-drain-and-reset", gpu.Degraded)},
		"newer":          {[]simdriver.Fault{simdriver.Recovery(1, 70)}, faults("needs-recovery-70", gpu.Degraded)},
		"remap failed":   {[]simdriver.Fault{simdriver.RemapFailed(1)}, sound(faults("row-remap-failure", gpu.Degraded))},
		"remap pending":  {[]simdriver.Fault{simdriver.RemapPending(1)}, sound(faults("row-remap-pending", gpu.Informs))},
		"hot":            {[]simdriver.Fault{simdriver.Slowdown(1, 64)}, sound(faults("thermal-slowdown", gpu.Informs))},
		"slow otherwise": {[]simdriver.Fault{simdriver.Slowdown(1, 4)}, gpu.Health{Sound: true}},
		"cannot tell": {[]simdriver.Fault{
			simdriver.FailCall("nvmlDeviceGetFieldValues", int(nvmllib.ERROR_NOT_SUPPORTED)),
			simdriver.FailCall("nvmlDeviceGetRemappedRows", int(nvmllib.ERROR_NOT_SUPPORTED)),
			simdriver.FailCall("nvmlDeviceGetCurrentClocksThrottleReasons", int(nvmllib.ERROR_NOT_SUPPORTED)),
		}, gpu.Health{}},
	} {
		if err := driver.ClearFaults(); err != nil {
			t.Fatal(err)
		}
		if err := driver.Fault(tc.faults...); err != nil {
			t.Fatal(err)
		}
		devices, skipped, err := node.Devices()
		if err != nil || len(skipped) > 0 || len(devices) != 4 {
			t.Fatalf("%s: %d GPUs, skipped %v, %v", name, len(devices), skipped, err)
		}
		got := devices[1].Health
		for i := range got.Faults {
			if got.Faults[i].Note == "" {
				t.Errorf("%s: nothing for people", name)
			}
			got.Faults[i].Note = ""
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func faults(kind string, severity gpu.Severity) gpu.Health {
	return gpu.Health{Faults: []gpu.Fault{{Kind: kind, Severity: severity}}}
}

func sound(h gpu.Health) gpu.Health {
	h.Sound = true
	return h
}
