package simdriver_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/e2e/simdriver"
)

func newNVCDI(t *testing.T, root *simdriver.Root) nvcdi.Interface {
	t.Helper()
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
	return lib
}

// The NVIDIA Container Toolkit takes the root for a driver's.
func TestNVCDIDescribesADevice(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "h100x8"))
	lib := newNVCDI(t, root)
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

// It finds a MIG device's capabilities in the table under /proc/driver, of its own
// process.
func TestNVCDIDescribesAMIGDevice(t *testing.T) {
	if !ownProcess(t, ownMounts) {
		return
	}
	hw := load(t, "h200x2")
	hw.GPUs[1].MIG = &simdriver.MIGStart{Enabled: true, Instances: []simdriver.MIGPlace{{Profile: "1g.18gb", Start: 0}, {Profile: "3g.71gb", Start: 4}}}
	root := newRoot(t, hw)
	seeProcDriver(t, root)
	cards, err := root.MIG()
	if err != nil {
		t.Fatal(err)
	}
	lib := newNVCDI(t, root)
	for _, instance := range cards[1].Instances {
		devices, err := lib.GetDeviceSpecsByID(instance.Computes[0].UUID)
		if err != nil || len(devices) != 1 {
			t.Fatalf("%d devices, %v", len(devices), err)
		}
		first := 3 + 15*9 + 9*instance.ID // gpu1/gi<id>/access
		want := []string{
			fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", first), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", first+1), "/dev/nvidia1",
		}
		if diff := cmp.Diff(want, nodes(devices[0].ContainerEdits.DeviceNodes)); diff != "" {
			t.Errorf("nodes of %s (-want +got):\n%s", instance.Profile, diff)
		}
	}
}

func ownMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
}

// seeProcDriver lets this process, which has its own mounts, see a root's table of
// capabilities as it would see a driver's.
func seeProcDriver(t *testing.T, root *simdriver.Root) {
	t.Helper()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skip(err)
	}
	if err := unix.Mount(root.ProcDriver(), "/proc/driver", "", unix.MS_BIND, ""); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Unmount("/proc/driver", unix.MNT_DETACH) })
}

func nodes(devices []*specs.DeviceNode) []string {
	var paths []string
	for _, device := range devices {
		paths = append(paths, device.Path)
	}
	slices.Sort(paths)
	return paths
}
