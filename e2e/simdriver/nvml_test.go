package simdriver_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/workload"
)

func newNVML(t *testing.T, root *simdriver.Root) nvml.Interface {
	t.Helper()
	lib := nvml.New(nvml.WithLibraryPath(root.NVML()))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("nvmlInit: %v", ret)
	}
	return lib
}

// asker collects the first failure of a row of NVML calls.
type asker struct{ t *testing.T }

func ask[T any](a asker, what string) func(T, nvml.Return) T {
	return func(value T, ret nvml.Return) T {
		a.t.Helper()
		if ret != nvml.SUCCESS {
			a.t.Errorf("%s: %v", what, ret)
		}
		return value
	}
}

func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// described asks NVML for everything that a description says.
func described(t *testing.T, lib nvml.Interface) simdriver.Hardware {
	a := asker{t}
	cuda := ask[int](a, "CUDA version")(lib.SystemGetCudaDriverVersion())
	hw := simdriver.Hardware{
		DriverVersion: ask[string](a, "driver version")(lib.SystemGetDriverVersion()),
		NVMLVersion:   ask[string](a, "NVML version")(lib.SystemGetNVMLVersion()),
		CUDAVersion:   fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10),
	}
	for i := range ask[int](a, "count")(lib.DeviceGetCount()) {
		d := ask[nvml.Device](a, "handle")(lib.DeviceGetHandleByIndex(i))
		if index := ask[int](a, "index")(d.GetIndex()); index != i {
			t.Errorf("device %d says it is %d", i, index)
		}
		hw.GPUs = append(hw.GPUs, describedGPU(t, d))
		for what, same := range map[string]func() (nvml.Device, nvml.Return){
			"UUID": func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByUUID(hw.GPUs[i].UUID) },
			"bus":  func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(hw.GPUs[i].PCI.BusID) },
		} {
			if got := ask[nvml.Device](a, what)(same()); got != d {
				t.Errorf("device %d is another one by its %s", i, what)
			}
		}
	}
	return hw
}

func describedGPU(t *testing.T, d nvml.Device) simdriver.GPU {
	a := asker{t}
	pci := ask[nvml.PciInfo](a, "pci")(d.GetPciInfo())
	memory := ask[nvml.Memory_v2](a, "memory")(d.GetMemoryInfo_v2())
	minor := ask[int](a, "minor")(d.GetMinorNumber())
	major, ccMinor, ret := d.GetCudaComputeCapability()
	if ret != nvml.SUCCESS {
		t.Errorf("compute capability: %v", ret)
	}
	serial, ret := d.GetSerial()
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("serial: %v", ret)
	}
	arch := map[nvml.DeviceArchitecture]string{nvml.DEVICE_ARCH_TURING: "turing", nvml.DEVICE_ARCH_AMPERE: "ampere",
		nvml.DEVICE_ARCH_ADA: "ada", nvml.DEVICE_ARCH_HOPPER: "hopper", nvml.DEVICE_ARCH_BLACKWELL: "blackwell"}
	brand := map[nvml.BrandType]string{nvml.BRAND_NVIDIA: "nvidia", nvml.BRAND_GEFORCE: "geforce", nvml.BRAND_NVIDIA_VCS: "nvidia-vcs"}
	virtualization := map[nvml.GpuVirtualizationMode]simdriver.Virtualization{nvml.GPU_VIRTUALIZATION_MODE_VGPU: simdriver.VGPU}

	current, pending, ret := d.GetMigMode()
	migMax := ask[int](a, "MIG devices")(d.GetMaxMigDeviceCount())
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED && migMax == 0:
	case ret == nvml.SUCCESS && migMax > 0 && current == nvml.DEVICE_MIG_DISABLE && pending == nvml.DEVICE_MIG_DISABLE:
	default:
		t.Errorf("MIG mode %d, %d, %v of a card that holds %d", current, pending, ret, migMax)
	}
	if memory.Used != 0 || memory.Free != memory.Total-memory.Reserved {
		t.Errorf("memory of an idle card: %+v", memory)
	}
	return simdriver.GPU{
		Name:              ask[string](a, "name")(d.GetName()),
		UUID:              ask[string](a, "uuid")(d.GetUUID()),
		Serial:            serial,
		Minor:             &minor,
		PCI:               simdriver.PCI{BusID: text(pci.BusId[:]), DeviceID: pci.PciDeviceId, SubsystemID: pci.PciSubSystemId},
		Memory:            simdriver.Memory{Total: memory.Total, Reserved: memory.Reserved},
		ComputeCapability: fmt.Sprintf("%d.%d", major, ccMinor),
		Architecture:      arch[ask[nvml.DeviceArchitecture](a, "architecture")(d.GetArchitecture())],
		Brand:             brand[ask[nvml.BrandType](a, "brand")(d.GetBrand())],
		Cores:             ask[int](a, "cores")(d.GetNumGpuCores()),
		MIGDevices:        migMax,
		MIGProfiles:       describedProfiles(t, d),
		Virtualization:    virtualization[ask[nvml.GpuVirtualizationMode](a, "virtualisation")(d.GetVirtualizationMode())],
	}
}

// What a description says is what go-nvml reads.
func TestNVMLTellsTheDescription(t *testing.T) {
	for _, name := range simdriver.Names() {
		t.Run(name, func(t *testing.T) {
			if !ownProcess(t) {
				return
			}
			want := load(t, name)
			got := described(t, newNVML(t, newRoot(t, want)))
			for i := range want.GPUs { // what NVML does not know
				want.GPUs[i].Model, want.GPUs[i].Multiprocessors = "", 0
				want.GPUs[i].PCI.Root, want.GPUs[i].PCI.NUMANode = "", nil
			}
			if diff := cmp.Diff(want, got, byIndex, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("hardware (-want +got):\n%s", diff)
			}
		})
	}
}

// holder starts a program that holds memory and returns what it got.
func holder(t *testing.T, root *simdriver.Root, bytes string) (*exec.Cmd, workload.Event) {
	t.Helper()
	cmd := command(t, root, workload.Program, "--bytes", bytes, "--hold")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var allocated workload.Event
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		events, err := workload.Events(lines.Bytes())
		if err != nil || len(events) != 1 {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		switch events[0].Event {
		case "allocated":
			allocated = events[0]
		case "holding":
			return cmd, allocated
		}
	}
	t.Fatal("the program ended")
	return nil, workload.Event{}
}

// checkMemory checks what NVML says of a card of which a process holds bytes.
func checkMemory(t *testing.T, d nvml.Device, gpu simdriver.GPU, pid int, held uint64) {
	t.Helper()
	v1 := ask[nvml.Memory](asker{t}, "memory")(d.GetMemoryInfo())
	if want := (nvml.Memory{Total: gpu.Memory.Total, Used: gpu.Memory.Reserved + held, Free: gpu.Memory.Total - gpu.Memory.Reserved - held}); v1 != want {
		t.Errorf("memory is %+v, want %+v", v1, want)
	}
	v2 := ask[nvml.Memory_v2](asker{t}, "memory")(d.GetMemoryInfo_v2())
	if v2.Used != held || v2.Reserved != gpu.Memory.Reserved || v2.Free != v1.Free {
		t.Errorf("memory (version 2) is %+v", v2)
	}
	var want []nvml.ProcessInfo
	if held != 0 {
		want = []nvml.ProcessInfo{{Pid: uint32(pid), UsedGpuMemory: held, GpuInstanceId: 0xffffffff, ComputeInstanceId: 0xffffffff}}
	}
	if diff := cmp.Diff(want, ask[[]nvml.ProcessInfo](asker{t}, "processes")(d.GetComputeRunningProcesses()), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}

func TestNVMLSeesMemoryAndProcesses(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "t4x4"))
	gpu := root.Hardware.GPUs[0]
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, root).DeviceGetHandleByIndex(0))
	checkMemory(t, d, gpu, 0, 0)
	cmd, allocated := holder(t, root, "1073741824")
	checkMemory(t, d, gpu, cmd.Process.Pid, allocated.Bytes)

	smi, err := exec.Command(filepath.Join(root.Path, "usr/bin/nvidia-smi")).CombinedOutput()
	if err != nil || !strings.Contains(string(smi), "cuda-alloc") || !strings.Contains(string(smi), "1024MiB") {
		t.Errorf("nvidia-smi: %v\n%s", err, smi)
	}
	// Nobody needs to tidy up after a death for NVML to be right.
	cmd.Process.Kill()
	cmd.Wait()
	checkMemory(t, d, gpu, 0, 0)
}

// The plugin has the driver root mounted read-only.
func TestNVMLOnAReadOnlyRoot(t *testing.T) {
	if !ownProcess(t, func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS} }) {
		return
	}
	root := newRoot(t, load(t, "odd-memory"))
	readOnly := filepath.Join(t.TempDir(), "driver-root")
	if err := os.Mkdir(readOnly, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, mount := range []struct {
		source, target string
		flags          uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{root.Path, readOnly, unix.MS_BIND},
		{"", readOnly, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
	} {
		if err := unix.Mount(mount.source, mount.target, "", mount.flags, ""); err != nil {
			t.Skipf("mount %s: %v", mount.target, err)
		}
	}
	t.Cleanup(func() { unix.Unmount(readOnly, unix.MNT_DETACH) })

	seen, err := simdriver.Open(readOnly)
	if err != nil {
		t.Fatal(err)
	}
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, seen).DeviceGetHandleByIndex(0))
	checkMemory(t, d, root.Hardware.GPUs[0], 0, 0) // nobody has used it: the ledger is empty
	cmd, allocated := holder(t, root, "1073741824")
	checkMemory(t, d, root.Hardware.GPUs[0], cmd.Process.Pid, allocated.Bytes)
}

func TestNVMLFaults(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "t4x4"))
	fault := func(faults ...simdriver.Fault) {
		t.Helper()
		if err := root.ClearFaults(); err != nil {
			t.Fatal(err)
		}
		if err := root.Fault(faults...); err != nil {
			t.Fatal(err)
		}
	}
	lib := nvml.New(nvml.WithLibraryPath(root.NVML()))
	fault(simdriver.FailCall("nvmlInit_v2", int(nvml.ERROR_DRIVER_NOT_LOADED)))
	if ret := lib.Init(); ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Fatalf("init with a fault: %v", ret)
	}
	fault()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("init when the fault is over: %v", ret)
	}
	d := ask[nvml.Device](asker{t}, "handle")(lib.DeviceGetHandleByIndex(3))

	fault(simdriver.FailCall("nvmlDeviceGetMemoryInfo", 999), simdriver.LoseGPU(2))
	if _, ret := d.GetMemoryInfo(); ret != nvml.ERROR_UNKNOWN {
		t.Errorf("memory with a fault: %v", ret)
	}
	if _, ret := d.GetName(); ret != nvml.SUCCESS {
		t.Errorf("name beside a fault: %v", ret)
	}
	if _, ret := lib.DeviceGetHandleByIndex(2); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("handle of a lost card: %v", ret)
	}
	fault(simdriver.LoseGPU(3))
	if _, ret := d.GetName(); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("name of a lost card: %v", ret)
	}
	fault()
	if ret := lib.Shutdown(); ret != nvml.SUCCESS {
		t.Errorf("shutdown: %v", ret)
	}
	if _, ret := lib.DeviceGetCount(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("after shutdown: %v", ret)
	}
}

func TestNVMLEvents(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "t4x4"))
	lib := newNVML(t, root)
	if err := root.Fault(simdriver.XID(1, 31)); err != nil { // before anyone listens
		t.Fatal(err)
	}
	set := ask[nvml.EventSet](asker{t}, "event set")(lib.EventSetCreate())
	device := ask[nvml.Device](asker{t}, "handle")(lib.DeviceGetHandleByIndex(1))
	if ret := device.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if _, ret := set.Wait(0); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("wait for nothing: %v", ret)
	}
	if err := root.Fault(simdriver.XID(0, 79), simdriver.XID(1, 48)); err != nil {
		t.Fatal(err)
	}
	event := ask[nvml.EventData](asker{t}, "wait")(set.Wait(10_000))
	if event.EventData != 48 || event.Device != device || event.EventType != nvml.EventTypeXidCriticalError {
		t.Errorf("got %+v, want XID 48 of device 1", event)
	}
	if _, ret := set.Wait(0); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("the event came twice, or that of a card nobody registered: %v", ret)
	}
	if err := root.Fault(simdriver.LoseGPU(1)); err != nil {
		t.Fatal(err)
	}
	if _, ret := set.Wait(10_000); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("wait on a lost card: %v", ret)
	}
	if ret := set.Free(); ret != nvml.SUCCESS {
		t.Error(ret)
	}
}

func TestNVMLHealth(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "t4x4"))
	lib := newNVML(t, root)
	device := ask[nvml.Device](asker{t}, "handle")(lib.DeviceGetHandleByIndex(1))
	other := ask[nvml.Device](asker{t}, "handle")(lib.DeviceGetHandleByIndex(0))
	set := ask[nvml.EventSet](asker{t}, "event set")(lib.EventSetCreate())
	if ret := device.RegisterEvents(nvml.EventTypeDoubleBitEccError, set); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if err := root.Fault(simdriver.XID(1, 79), simdriver.Event(1, nvml.EventTypeDoubleBitEccError),
		simdriver.Recovery(1, 2), simdriver.RemapPending(1), simdriver.Slowdown(1, 64)); err != nil {
		t.Fatal(err)
	}
	event := ask[nvml.EventData](asker{t}, "wait")(set.Wait(10_000))
	if event.EventType != nvml.EventTypeDoubleBitEccError || event.EventData != 0 {
		t.Errorf("got %+v, want the one event that was asked for", event)
	}
	for d, want := range map[nvml.Device][]uint64{device: {2, 1, 0, 64}, other: {0, 0, 0, 0}} {
		values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {FieldId: nvml.FI_DEV_MEMORY_TEMP}}
		if ret := d.GetFieldValues(values); ret != nvml.SUCCESS || nvml.Return(values[0].NvmlReturn) != nvml.SUCCESS ||
			nvml.Return(values[1].NvmlReturn) != nvml.ERROR_NOT_SUPPORTED {
			t.Fatalf("fields: %v, %v", ret, values)
		}
		_, _, pending, failed, ret := d.GetRemappedRows()
		reasons, reasonsRet := d.GetCurrentClocksThrottleReasons() // drivers before 535 have no other
		if ret != nvml.SUCCESS || reasonsRet != nvml.SUCCESS {
			t.Fatal(ret, reasonsRet)
		}
		got := []uint64{uint64(values[0].Value[0]), number(pending), number(failed), reasons}
		if !slices.Equal(got, want) {
			t.Errorf("recovery, pending, failed and slowdown are %v, want %v", got, want)
		}
	}
}

func number(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}
