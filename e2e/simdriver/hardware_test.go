package simdriver_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
)

func TestDescriptions(t *testing.T) {
	want := []string{
		"a100-80x2", "a100x8", "a30x2", "b200x2", "gh200x1", "h100x8", "h200x2", "mixed", "odd-memory", "rtx4090x1", "rtxpro6000x2", "t4x4", "vgpu",
	}
	if diff := cmp.Diff(want, simdriver.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for _, name := range simdriver.Names() {
		load(t, name)
	}
	if memory := load(t, "odd-memory").GPUs[0].Memory; memory.Total%mib == 0 || (memory.Total-memory.Reserved)%mib == 0 {
		t.Errorf("odd-memory has %+v, which is even", memory)
	}
	if pci := load(t, "vgpu").GPUs[0].PCI; pci.Root != "" || pci.NUMANode != nil {
		t.Errorf("vgpu knows more than a VM: %+v", pci)
	}
	if _, err := simdriver.Load("h100x9"); err == nil || !strings.Contains(err.Error(), "h100x8") {
		t.Errorf("an unknown name: %v, want the names there are", err)
	}
}

func TestParseRefuses(t *testing.T) {
	const head = "driverVersion: '1'\nnvmlVersion: '1'\ncudaVersion: '13.0'\ngpus:\n"
	const gpu = "- {model: t4, uuid: GPU-00000000-0000-0000-0000-00000000000a, pci: {busID: '00000000:01:00.0'}}\n"
	if _, err := simdriver.Parse([]byte(head + gpu)); err != nil {
		t.Fatalf("the base of this test: %v", err)
	}
	tests := map[string]struct{ yaml, want string }{
		"unknown key":       {"colour: red\n" + head + gpu, "colour"},
		"unknown GPU key":   {head + "- {model: t4, colour: red}\n", "colour"},
		"unknown model":     {head + "- {model: t5}\n", "a100-40gb"},
		"one card twice":    {head + gpu + gpu, "taken by gpus[0]"},
		"bad UUID":          {head + strings.Replace(gpu, "GPU-", "", 1), "uuid"},
		"bad bus":           {head + strings.Replace(gpu, "00000000:01", "0000:01", 1), "pci.busID"},
		"bad version":       {strings.Replace(head, "13.0", "13", 1) + gpu, "cudaVersion"},
		"memory":            {head + strings.Replace(gpu, "t4,", "t4, memory: {total: 1, reserved: 1},", 1), "does not exceed"},
		"time slice":        {head + strings.Replace(gpu, "t4,", "t4, timeSliceMicroseconds: -1,", 1), "timeSliceMicroseconds"},
		"MIG without":       {head + strings.Replace(gpu, "t4,", "t4, mig: {enabled: true},", 1), "cannot be divided"},
		"MIG profile":       {head + strings.Replace(gpu, "t4,", "h200, mig: {enabled: true, instances: [{profile: 1g.19gb, start: 0}]},", 1), "1g.19gb"},
		"MIG placement":     {head + strings.Replace(gpu, "t4,", "h200, mig: {enabled: true, instances: [{profile: 3g.71gb, start: 2}]},", 1), "3g.71gb"},
		"virtualisation":    {head + strings.Replace(gpu, "t4,", "t4, virtualization: partly,", 1), "partly"},
		"two at once, uuid": {head + "- {model: t4, uuid: x, pci: {busID: here}}\n", "uuid"},
		"two at once, bus":  {head + "- {model: t4, uuid: x, pci: {busID: here}}\n", "pci.busID"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := simdriver.Parse([]byte(test.yaml)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want something of %q", err, test.want)
			}
		})
	}
}
