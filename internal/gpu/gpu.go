// Package gpu says what a GPU of this node is, in plain values that can be printed, stored in a file and compared. It
// does not talk to hardware: package nvml does.
package gpu

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Device is one GPU as its driver describes it.
type Device struct {
	Index             int    `json:"index"`              // NVML's index, which orders GPUs by PCI address
	UUID              string `json:"uuid"`               // "GPU-" and a UUID
	ProductName       string `json:"productName"`        // "NVIDIA H100 80GB HBM3"
	Brand             string `json:"brand"`              // "Nvidia", "Tesla", ...
	Architecture      string `json:"architecture"`       // "Hopper", ...
	ComputeCapability string `json:"computeCapability"`  // "9.0"
	DriverVersion     string `json:"driverVersion"`      // "580.95.05"
	CUDADriverVersion string `json:"cudaDriverVersion"`  // "13.0"
	PCIBusID          string `json:"pciBusID"`           // "0000:1b:00.0", lower case
	PCIeRoot          string `json:"pcieRoot,omitempty"` // "pci0000:15"; empty where the machine shows none, as some VMs do
	NUMANode          *int   `json:"numaNode,omitempty"` // nil where the machine shows none
	MemoryTotal       uint64 `json:"memoryTotal"`        // bytes, as nvidia-smi shows
	MemoryReserved    uint64 `json:"memoryReserved"`     // bytes of MemoryTotal that the driver keeps for itself
	MIG               *MIG   `json:"mig,omitempty"`      // nil for a GPU that cannot be partitioned
	Health            Health `json:"health,omitzero"`
}

// Allocatable is how many bytes of the GPU can be given out: what the driver does not keep, floored to step. The last
// share of a full GPU could not have what it was given if the reserved part were counted too.
func (d Device) Allocatable(step uint64) uint64 {
	if d.MemoryReserved >= d.MemoryTotal {
		return 0
	}
	free := d.MemoryTotal - d.MemoryReserved
	return free - free%step
}

// Name is the name under which the GPU is published, a DNS label.
func (d Device) Name() string {
	return fmt.Sprintf("gpu-%d", d.Index)
}

// FromFile reads the GPUs that a YAML or JSON file lists, refusing fields it does not know.
func FromFile(path string) ([]Device, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read GPUs: %w", err)
	}
	var devices []Device
	if err := yaml.UnmarshalStrict(data, &devices); err != nil {
		return nil, fmt.Errorf("read GPUs from %s: %w", path, err)
	}
	return devices, nil
}
