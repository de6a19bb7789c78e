package simdriver

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// NVML's numbers for what the descriptions name (NVML API reference:
// nvmlDeviceArchitecture_t, nvmlBrandType_t, nvmlGpuVirtualizationMode_t).
var (
	architectures = map[string]int{
		"kepler": 2, "maxwell": 3, "pascal": 4, "volta": 5, "turing": 6,
		"ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10,
	}
	brands = map[string]int{
		"quadro": 1, "tesla": 2, "nvs": 3, "grid": 4, "geforce": 5, "titan": 6,
		"nvidia-vcs": 9, "nvidia-vws": 10, "quadro-rtx": 12, "nvidia-rtx": 13,
		"nvidia": 14, "geforce-rtx": 15, "titan-rtx": 16,
	}
	virtualizations = map[Virtualization]int{BareMetal: 0, Passthrough: 1, VGPU: 2}
)

// flat renders the description for the C libraries: one "key value" a line,
// read by native/hardware.c, where the keys are the fields of its structs.
func (hw Hardware) flat() string {
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "%s %v\n", key, value) }

	line("driver_version", hw.DriverVersion)
	line("nvml_version", hw.NVMLVersion)
	major, minor := twoNumbers(hw.CUDAVersion)
	line("cuda_version", major*1000+minor*10)
	for i, gpu := range hw.GPUs {
		line("gpu", i)
		line("name", gpu.Name)
		line("uuid", gpu.UUID)
		if gpu.Serial != "" {
			line("serial", gpu.Serial)
		}
		line("minor", *gpu.Minor)
		line("pci_bus_id", gpu.PCI.BusID)
		domain, bus, device := gpu.PCI.numbers()
		line("pci_domain", domain)
		line("pci_bus", bus)
		line("pci_device", device)
		line("pci_device_id", gpu.PCI.DeviceID)
		line("pci_subsystem_id", gpu.PCI.SubsystemID)
		line("memory_total", gpu.Memory.Total)
		line("memory_reserved", gpu.Memory.Reserved)
		line("context_bytes", uint64(gpu.ContextMiB)<<20)
		line("slice_ns", cmp.Or(gpu.TimeSliceMicroseconds, 2000)*1000)
		major, minor := twoNumbers(gpu.ComputeCapability)
		line("cc_major", major)
		line("cc_minor", minor)
		line("architecture", architectures[gpu.Architecture])
		line("brand", brands[gpu.Brand])
		line("multiprocessors", gpu.Multiprocessors)
		line("cores", gpu.Cores)
		line("mig_max", gpu.MIGDevices)
		line("virtualization", virtualizations[gpu.Virtualization])
		for _, profile := range gpu.MIGProfiles {
			line("mig_profile", profile.flat())
		}
	}
	return b.String()
}

// twoNumbers splits "9.0", whose form Validate has checked.
func twoNumbers(version string) (major, minor int) {
	a, b, _ := strings.Cut(version, ".")
	major, _ = strconv.Atoi(a)
	minor, _ = strconv.Atoi(b)
	return major, minor
}

func (p PCI) numbers() (domain, bus, device uint64) {
	domain, _ = strconv.ParseUint(p.BusID[0:8], 16, 32)
	bus, _ = strconv.ParseUint(p.BusID[9:11], 16, 8)
	device, _ = strconv.ParseUint(p.BusID[12:14], 16, 8)
	return domain, bus, device
}
