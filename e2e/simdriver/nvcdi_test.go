package simdriver_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

// The NVIDIA Container Toolkit takes the root for a driver's.
func TestNVCDIDescribesADevice(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "h100x8"))
	lib, err := nvcdi.New(
		nvcdi.WithNvmlLib(nvml.New(nvml.WithLibraryPath(root.NVML()))),
		nvcdi.WithDriverRoot(root.Path),
		nvcdi.WithDevRoot(root.Path),
		nvcdi.WithMode("nvml"),
		nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := lib.GetDeviceSpecsByID(root.Hardware.GPUs[3].UUID)
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 1 {
		t.Fatalf("%d devices for one UUID", len(devices))
	}
	if diff := cmp.Diff([]string{"/dev/nvidia3"}, nodes(devices[0].ContainerEdits.DeviceNodes)); diff != "" {
		t.Errorf("nodes of the device (-want +got):\n%s", diff)
	}

	common, err := lib.GetCommonEdits()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}, nodes(common.DeviceNodes)); diff != "" {
		t.Errorf("common nodes (-want +got):\n%s", diff)
	}
	var mounts []string
	for _, mount := range common.Mounts {
		mounts = append(mounts, mount.ContainerPath)
	}
	version := root.Hardware.DriverVersion
	for _, want := range []string{
		"/usr/lib/x86_64-linux-gnu/libcuda.so." + version,
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so." + version,
		"/usr/bin/nvidia-smi",
	} {
		at := slices.Index(mounts, want)
		if at < 0 {
			t.Errorf("mounts %v lack %s", mounts, want)
			continue
		}
		if host := common.Mounts[at].HostPath; host != filepath.Join(root.Path, want) {
			t.Errorf("%s is mounted from %s", want, host)
		}
	}
}

func nodes(devices []*specs.DeviceNode) []string {
	var paths []string
	for _, device := range devices {
		paths = append(paths, device.Path)
	}
	slices.Sort(paths)
	return paths
}
