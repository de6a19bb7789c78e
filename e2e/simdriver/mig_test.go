package simdriver_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// divided gives a root whose first card is in MIG mode, and the card.
func divided(t *testing.T, hw simdriver.Hardware) (*simdriver.Root, nvml.Interface, nvml.Device) {
	t.Helper()
	hw.GPUs[0].MIG = &simdriver.MIGStart{Enabled: true}
	root := newRoot(t, hw)
	lib := newNVML(t, root)
	return root, lib, ask[nvml.Device](asker{t}, "handle")(lib.DeviceGetHandleByIndex(0))
}

func mode(t *testing.T, d nvml.Device) [2]int {
	t.Helper()
	current, pending, ret := d.GetMigMode()
	if ret != nvml.SUCCESS {
		t.Errorf("MIG mode: %v", ret)
	}
	return [2]int{current, pending}
}

// setMode checks what the call, the activation and the modes then are.
func setMode(t *testing.T, d nvml.Device, wanted int, want [2]nvml.Return, then [2]int) {
	t.Helper()
	activation, ret := d.SetMigMode(wanted)
	if got := [2]nvml.Return{ret, activation}; got != want {
		t.Errorf("set mode %d: %v and activation %v, want %v", wanted, ret, activation, want)
	}
	if got := mode(t, d); got != then {
		t.Errorf("after mode %d was set, current and pending are %v, want %v", wanted, got, then)
	}
}

func profileInfo(t *testing.T, d nvml.Device, index int) *nvml.GpuInstanceProfileInfo {
	t.Helper()
	info := ask[nvml.GpuInstanceProfileInfo](asker{t}, "profile")(d.GetGpuInstanceProfileInfo(index))
	return &info
}

// place makes an instance at a start; that it must fail so is said by want.
func place(t *testing.T, d nvml.Device, index int, start uint32, want nvml.Return) nvml.GpuInstance {
	t.Helper()
	info := profileInfo(t, d, index)
	size := ask[[]nvml.GpuInstancePlacement](asker{t}, "placements")(d.GetGpuInstancePossiblePlacements(info))[0].Size
	instance, ret := d.CreateGpuInstanceWithPlacement(info, &nvml.GpuInstancePlacement{Start: start, Size: size})
	if ret != want {
		t.Errorf("profile %d at %d: %v, want %v", index, start, ret, want)
	}
	return instance
}

func fill(t *testing.T, instance nvml.GpuInstance, profile int) nvml.ComputeInstance {
	t.Helper()
	info := ask[nvml.ComputeInstanceProfileInfo](asker{t}, "compute profile")(instance.GetComputeInstanceProfileInfo(profile, 0))
	return ask[nvml.ComputeInstance](asker{t}, "compute instance")(instance.CreateComputeInstance(&info))
}

func capacity(t *testing.T, d nvml.Device, index int) int {
	t.Helper()
	return ask[int](asker{t}, "capacity")(d.GetGpuInstanceRemainingCapacity(profileInfo(t, d, index)))
}

func TestMIGModeFromHopperOnTakesEffectAtOnce(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "h200x2"))
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, root).DeviceGetHandleByIndex(0))
	done := [2]nvml.Return{nvml.SUCCESS, nvml.SUCCESS}
	if _, ret := d.CreateGpuInstance(profileInfo(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE)); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("an instance of a card that is not in MIG mode: %v", ret)
	}

	cmd, _ := holder(t, root, "1073741824")
	setMode(t, d, 1, [2]nvml.Return{nvml.SUCCESS, nvml.ERROR_IN_USE}, [2]int{0, 1})
	cmd.Process.Kill()
	cmd.Wait()
	setMode(t, d, 1, done, [2]int{1, 1})
	setMode(t, d, 0, done, [2]int{0, 0})
	setMode(t, d, 1, done, [2]int{1, 1})
	place(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 6, nvml.SUCCESS)
	setMode(t, d, 0, [2]nvml.Return{nvml.ERROR_IN_USE, nvml.ERROR_IN_USE}, [2]int{1, 1})
	if _, ret := d.SetMigMode(2); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("a mode that is none: %v", ret)
	}
}

func TestMIGModeOfAmpereNeedsAReset(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "a30x2"))
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, root).DeviceGetHandleByIndex(1))
	reset := [2]nvml.Return{nvml.SUCCESS, nvml.ERROR_RESET_REQUIRED}
	setMode(t, d, 1, reset, [2]int{0, 1})
	setMode(t, d, 0, [2]nvml.Return{nvml.SUCCESS, nvml.SUCCESS}, [2]int{0, 0})
	setMode(t, d, 1, reset, [2]int{0, 1})
	if err := root.ResetGPU(1); err != nil {
		t.Fatal(err)
	}
	if got := mode(t, d); got != [2]int{1, 1} {
		t.Errorf("after a reset: %v", got)
	}
	place(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE, 2, nvml.SUCCESS)
	if err := root.SetMIGMode(1, false); err == nil || !strings.Contains(err.Error(), "19") {
		t.Errorf("disabling MIG with an instance: %v", err)
	}
	if err := root.ResetGPU(1); err != nil {
		t.Fatal(err)
	}
	cards, err := root.MIG()
	if err != nil || len(cards[1].Instances) != 0 || !cards[1].Enabled {
		t.Errorf("a reset left %+v, %v", cards[1], err)
	}
}

func TestBootEndsInstances(t *testing.T) {
	for hardware, keeps := range map[string]bool{"a30x2": true, "h200x2": false} {
		root := newRoot(t, load(t, hardware))
		_ = root.SetMIGMode(1, true) // or from the reset on
		if err := root.ResetGPU(1); err != nil {
			t.Fatal(err)
		}
		if _, err := root.CreateGPUInstance(1, map[bool]string{true: "1g.6gb", false: "1g.18gb"}[keeps], simdriver.Anywhere); err != nil {
			t.Fatal(err)
		}
		if err := root.Boot(); err != nil {
			t.Fatal(err)
		}
		cards, err := root.MIG()
		if err != nil || len(cards[1].Instances) > 0 || cards[1].Enabled != keeps {
			t.Errorf("%s: a boot left %+v, %v", hardware, cards[1], err)
		}
	}
}

func TestMIGOfACardThatHasNone(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "t4x4"))
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, root).DeviceGetHandleByIndex(0))
	if _, ret := d.SetMigMode(1); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("set the mode: %v", ret)
	}
	if _, ret := d.GetGpuInstanceProfileInfo(0); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("a profile: %v", ret)
	}
	if _, ret := d.GetMigDeviceHandleByIndex(0); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("a MIG device: %v", ret)
	}
}

func TestInstancesTakePlaces(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	_, _, d := divided(t, load(t, "h200x2"))
	const oneSlice, twoSlices, threeSlices, fourSlices, seven, media, wide = nvml.GPU_INSTANCE_PROFILE_1_SLICE,
		nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.GPU_INSTANCE_PROFILE_4_SLICE,
		nvml.GPU_INSTANCE_PROFILE_7_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2
	for index, want := range map[int]int{oneSlice: 7, twoSlices: 3, threeSlices: 2, fourSlices: 1, seven: 1, media: 1, wide: 4} {
		if got := capacity(t, d, index); got != want {
			t.Errorf("an empty card has room for %d of profile %d, want %d", got, index, want)
		}
	}
	three := place(t, d, threeSlices, 4, nvml.SUCCESS)
	for index, want := range map[int]int{oneSlice: 4, twoSlices: 2, threeSlices: 1, fourSlices: 1, seven: 0, media: 1, wide: 2} {
		if got := capacity(t, d, index); got != want {
			t.Errorf("beside 3g at 4 there is room for %d of profile %d, want %d", got, index, want)
		}
	}
	place(t, d, threeSlices, 4, nvml.ERROR_INSUFFICIENT_RESOURCES)
	place(t, d, oneSlice, 5, nvml.ERROR_INSUFFICIENT_RESOURCES)
	place(t, d, threeSlices, 2, nvml.ERROR_INVALID_ARGUMENT)
	place(t, d, oneSlice, 7, nvml.ERROR_INVALID_ARGUMENT)
	if _, ret := d.CreateGpuInstanceWithPlacement(profileInfo(t, d, oneSlice), &nvml.GpuInstancePlacement{Start: 0, Size: 2}); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("1g of two memory slices: %v", ret)
	}
	place(t, d, media, 0, nvml.SUCCESS)
	place(t, d, media, 1, nvml.ERROR_INSUFFICIENT_RESOURCES) // there is one OFA engine
	place(t, d, oneSlice, 1, nvml.SUCCESS)
	wideInstance := place(t, d, wide, 2, nvml.SUCCESS)

	info := ask[nvml.GpuInstanceInfo](asker{t}, "info")(wideInstance.GetInfo())
	if info.Device != d || info.ProfileId != 15 || info.Placement != (nvml.GpuInstancePlacement{Start: 2, Size: 2}) {
		t.Errorf("the instance says %+v", info)
	}
	if same := ask[nvml.GpuInstance](asker{t}, "by id")(d.GetGpuInstanceById(int(info.Id))); same != wideInstance {
		t.Error("by its id it is another one")
	}
	if all := ask[[]nvml.GpuInstance](asker{t}, "list")(d.GetGpuInstances(profileInfo(t, d, oneSlice))); len(all) != 1 {
		t.Errorf("%d instances of 1g, want the one without media extensions", len(all))
	}

	// A number is used again; the handle of what had it stays dead.
	old := ask[nvml.GpuInstanceInfo](asker{t}, "info")(three.GetInfo()).Id
	if ret := three.Destroy(); ret != nvml.SUCCESS {
		t.Fatalf("destroy: %v", ret)
	}
	if _, ret := d.GetGpuInstanceById(int(old)); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("by the id of one that is gone: %v", ret)
	}
	again := place(t, d, threeSlices, 4, nvml.SUCCESS)
	if id := ask[nvml.GpuInstanceInfo](asker{t}, "info")(again.GetInfo()).Id; id != old {
		t.Errorf("its successor has id %d, want %d again", id, old)
	}
	if _, ret := three.GetInfo(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("the old handle: %v", ret)
	}
	if ret := three.Destroy(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("destroying by the old handle: %v", ret)
	}
}

// One partition may have all media engines; what is left can have none.
func TestMediaEnginesAreLimited(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	_, _, d := divided(t, load(t, "rtxpro6000x2"))
	place(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, 3, nvml.SUCCESS)
	place(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, 0, nvml.ERROR_INSUFFICIENT_RESOURCES)
	place(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 0, nvml.ERROR_INSUFFICIENT_RESOURCES)
	if got := capacity(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME); got != 3 {
		t.Errorf("room for %d without media engines, want 3", got)
	}
	place(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME, 6, nvml.SUCCESS)
	place(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, 0, nvml.SUCCESS)
}

func TestMIGDevices(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root, lib, d := divided(t, load(t, "h200x2"))
	place(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 0, nvml.SUCCESS) // empty
	three := place(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 4, nvml.SUCCESS)
	part := fill(t, three, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE)
	fill(t, three, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE)
	two := place(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE, 2, nvml.SUCCESS)
	whole := fill(t, two, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE)

	nvlib := device.New(lib)
	got := map[string]string{}
	parent, err := nvlib.NewDevice(d)
	if err != nil {
		t.Fatal(err)
	}
	for i, mig := range migDevices(t, parent) {
		a := asker{t}
		profile, err := mig.GetProfile()
		if err != nil {
			t.Fatal(err)
		}
		name, attributes := ask[string](a, "name")(mig.GetName()), ask[nvml.DeviceAttributes](a, "attributes")(mig.GetAttributes())
		got[profile.String()] = fmt.Sprintf("%s, %d SMs, %d MiB", name, attributes.MultiprocessorCount, attributes.MemorySizeMB)
		if index := ask[int](a, "index")(mig.GetIndex()); index != i {
			t.Errorf("MIG device %d has index %d", i, index)
		}
		uuid := ask[string](a, "uuid")(mig.GetUUID())
		same, err := nvlib.NewMigDeviceByUUID(uuid)
		if err != nil {
			t.Fatal(err)
		}
		if again := ask[string](a, "uuid")(same.GetUUID()); again != uuid || !strings.HasPrefix(uuid, "MIG-") {
			t.Errorf("%s is %s by its UUID", uuid, again)
		}
		if owner := ask[nvml.Device](a, "parent")(mig.GetDeviceHandleFromMigDeviceHandle()); owner != d {
			t.Errorf("%s is of another card", uuid)
		}
		if memory := ask[nvml.Memory](a, "memory")(mig.GetMemoryInfo()); memory.Total>>20 != attributes.MemorySizeMB || memory.Used != 0 {
			t.Errorf("%s has memory %+v", uuid, memory)
		}
		if _, ret := mig.GetSerial(); ret != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("serial of a MIG device: %v", ret)
		}
	}
	want := map[string]string{
		"1c.3g.71gb": "NVIDIA H200 MIG 1c.3g.71gb, 16 SMs, 71168 MiB",
		"2c.3g.71gb": "NVIDIA H200 MIG 2c.3g.71gb, 32 SMs, 71168 MiB",
		"2g.35gb":    "NVIDIA H200 MIG 2g.35gb, 32 SMs, 33024 MiB",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("MIG devices (-want +got):\n%s", diff)
	}

	if info := ask[nvml.ComputeInstanceInfo](asker{t}, "info")(part.GetInfo()); info.GpuInstance != three || info.Device != d ||
		info.Placement.Start != 2 || info.Placement.Size != 1 {
		t.Errorf("the compute instance says %+v", info)
	}
	if ret := two.Destroy(); ret != nvml.ERROR_IN_USE {
		t.Errorf("destroying an instance that is divided: %v", ret)
	}
	mig := ask[nvml.Device](asker{t}, "last MIG device")(d.GetMigDeviceHandleByIndex(2))
	if ret := whole.Destroy(); ret != nvml.SUCCESS {
		t.Errorf("destroy: %v", ret)
	}
	if _, ret := mig.GetUUID(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("the UUID of what is gone: %v", ret)
	}
	if ret := two.Destroy(); ret != nvml.SUCCESS {
		t.Errorf("destroying an instance that is empty: %v", ret)
	}
	smi, err := exec.Command(filepath.Join(root.Path, "usr/bin/nvidia-smi"), "-L").CombinedOutput()
	if lines := strings.Split(string(smi), "\n"); err != nil || len(lines) != 5 || !strings.HasPrefix(lines[1], "  MIG 1c.3g.71gb  Device  0: (UUID: MIG-") {
		t.Errorf("nvidia-smi -L: %v\n%s", err, smi)
	}
}

func migDevices(t *testing.T, d device.Device) []device.MigDevice {
	t.Helper()
	devices, err := d.GetMigDevices()
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func TestComputeInstanceProfiles(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	_, _, d := divided(t, load(t, "h200x2"))
	seven := place(t, d, nvml.GPU_INSTANCE_PROFILE_7_SLICE, 0, nvml.SUCCESS)
	got := map[string][2]int{}
	for i := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := seven.GetComputeInstanceProfileInfoV(i, 0).V3()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		v1 := ask[nvml.ComputeInstanceProfileInfo](asker{t}, "profile")(seven.GetComputeInstanceProfileInfo(i, 0))
		free := ask[int](asker{t}, "capacity")(seven.GetComputeInstanceRemainingCapacity(&v1))
		placements := ask[[]nvml.ComputeInstancePlacement](asker{t}, "placements")(seven.GetComputeInstancePossiblePlacements(&v1))
		if free != int(info.InstanceCount) || len(placements) != free || v1.Id != info.Id {
			t.Errorf("profile %d: room for %d of %d, placements %v", i, free, info.InstanceCount, placements)
		}
		got[text(info.Name[:])] = [2]int{int(info.InstanceCount), int(info.MultiprocessorCount)}
	}
	want := map[string][2]int{ // as `nvidia-smi mig -lcip` has it for seven slices
		"MIG 1c.7g.141gb": {7, 16}, "MIG 2c.7g.141gb": {3, 32}, "MIG 3c.7g.141gb": {2, 48}, "MIG 4c.7g.141gb": {1, 64}, "MIG 7g.141gb": {1, 132},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("compute instance profiles (-want +got):\n%s", diff)
	}
	if _, ret := seven.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_COUNT, 0); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("the profile after the last: %v", ret)
	}
}

// What an admin does is what NVML then says, and no two devices ever have one UUID.
func TestAdminDividesACard(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	hw := load(t, "a100x8")
	hw.GPUs[2].MIG = &simdriver.MIGStart{Enabled: true, Instances: []simdriver.MIGPlace{{Profile: "3g.20gb", Start: 0}, {Profile: "1g.5gb+me", Start: 6}}}
	root := newRoot(t, hw)
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, root).DeviceGetHandleByIndex(2))
	seen := map[string]bool{}
	for range 3 {
		made, err := root.CreateMIG(2, "1g.5gb", simdriver.Anywhere)
		if err != nil {
			t.Fatal(err)
		}
		uuid := made.Computes[0].UUID
		if seen[uuid] {
			t.Errorf("%s came again", uuid)
		}
		seen[uuid] = true
		mig := ask[nvml.Device](asker{t}, "MIG device")(d.GetMigDeviceHandleByIndex(2))
		if got := ask[string](asker{t}, "uuid")(mig.GetUUID()); got != uuid {
			t.Errorf("NVML has %s, the admin made %s", got, uuid)
		}
		if err := root.DestroyMIG(2, made.ID); err != nil {
			t.Error(err)
		}
	}
	var exit *exec.ExitError
	if _, err := root.CreateMIG(2, "4g.20gb", 0); !errors.As(err, &exit) {
		t.Errorf("over what is there: %v", err)
	}
	cards, err := root.MIG()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, instance := range cards[2].Instances {
		got = append(got, fmt.Sprintf("%s %d:%d", instance.Profile, instance.Start, instance.Size))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"1g.5gb+me 6:1", "3g.20gb 0:4"}, got); diff != "" || cards[0].Enabled {
		t.Errorf("the card (-want +got):\n%s", diff)
	}
	// To make the root again changes nothing.
	if _, err := simdriver.NewRoot(t.Context(), root.Path, hw); err != nil {
		t.Fatal(err)
	}
	if after, err := root.MIG(); err != nil || !cmp.Equal(cards, after) {
		t.Errorf("made again: %s, %v", cmp.Diff(cards, after), err)
	}
}

func TestMIGFaults(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root, _, d := divided(t, load(t, "h200x2"))
	info := profileInfo(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	if err := root.Fault(simdriver.FailNthCall("nvmlDeviceCreateGpuInstance", 2, int(nvml.ERROR_UNKNOWN))); err != nil {
		t.Fatal(err)
	}
	for call, want := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.SUCCESS} {
		if _, ret := d.CreateGpuInstance(info); ret != want {
			t.Errorf("call %d: %v, want %v", call+1, ret, want)
		}
	}
	if err := root.Fault(simdriver.FailCall("nvmlGpuInstanceDestroy", int(nvml.ERROR_IN_USE))); err != nil {
		t.Fatal(err)
	}
	instance := ask[[]nvml.GpuInstance](asker{t}, "list")(d.GetGpuInstances(info))[0]
	if ret := instance.Destroy(); ret != nvml.ERROR_IN_USE {
		t.Errorf("destroy with a fault: %v", ret)
	}
}

// Whenever a process dies that divides a card, an instance is there or it is not.
func TestMIGStateIsWholeAfterDeathAtEachStep(t *testing.T) {
	root := newRoot(t, load(t, "h200x2"))
	program := filepath.Join(t.TempDir(), "mig_crash")
	sources := []string{"-o", program, "testdata/mig_crash.c"}
	for _, name := range []string{"root", "hardware", "process", "ledger", "grant", "mig_state", "mig_rules"} {
		sources = append(sources, "native/"+name+".c")
	}
	output, err := exec.Command("gcc", append([]string{"-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-I", "native", "-pthread"}, sources...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if output, err := exec.CommandContext(t.Context(), program, root.Path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// A process knows of the MIG devices whose capabilities it has, as in a container;
// with those for all it knows of all, and may divide.
func TestNVMLSeesMIGDevicesByCapability(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root, three, one := partitioned(t)
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, root).DeviceGetHandleByIndex(0))
	seen := func() (uuids []string) {
		t.Helper()
		for i := range ask[int](asker{t}, "most")(d.GetMaxMigDeviceCount()) {
			mig, ret := d.GetMigDeviceHandleByIndex(i)
			if ret == nvml.SUCCESS {
				uuids = append(uuids, ask[string](asker{t}, "uuid")(mig.GetUUID()))
			}
		}
		return uuids
	}
	remove := func(nodes ...string) {
		t.Helper()
		for _, node := range nodes {
			if err := os.Remove(node); err != nil {
				t.Fatal(err)
			}
		}
	}
	caps := filepath.Join(root.Path, "dev/nvidia-caps")
	remove(filepath.Join(caps, "nvidia-cap1"))
	if got := seen(); len(got) != 2 {
		t.Errorf("with the capability to monitor: %v", got)
	}
	if _, ret := d.CreateGpuInstance(profileInfo(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE)); ret != nvml.ERROR_NO_PERMISSION {
		t.Errorf("dividing without the capability to: %v", ret)
	}
	remove(filepath.Join(caps, "nvidia-cap2"), capNode(root, three, 1))
	if diff := cmp.Diff([]string{one.Computes[0].UUID}, seen()); diff != "" {
		t.Errorf("with the capabilities of one (-want +got):\n%s", diff)
	}
	if _, ret := d.GetGpuInstanceById(three.ID); ret != nvml.SUCCESS {
		t.Errorf("an instance whose capability is there: %v", ret)
	}
	remove(capNode(root, three, 0))
	if _, ret := d.GetGpuInstanceById(three.ID); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("an instance whose capability is not there: %v", ret)
	}
}

// The plugin has the driver root read-only, and the hardware where all containers
// have it.
func TestMIGOnAReadOnlyRoot(t *testing.T) {
	if !ownProcess(t, ownMounts) {
		return
	}
	hw := load(t, "h200x2")
	hw.GPUs[0].MIG = &simdriver.MIGStart{Enabled: true}
	root := newRoot(t, hw)
	readOnly := filepath.Join(t.TempDir(), "driver-root")
	for _, mount := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{root.Path, readOnly, "", unix.MS_BIND},
		{"", readOnly, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
		{"tmpfs", "/run", "tmpfs", 0},
		{root.StateDir(), "/run/nvidia-sim", "", unix.MS_BIND},
	} {
		if err := os.MkdirAll(mount.target, 0o755); err != nil && mount.flags&unix.MS_REMOUNT == 0 {
			t.Fatal(err)
		}
		if err := unix.Mount(mount.source, mount.target, mount.kind, mount.flags, ""); err != nil {
			t.Skipf("mount %s: %v", mount.target, err)
		}
	}
	t.Cleanup(func() { unix.Unmount(readOnly, unix.MNT_DETACH) })
	seen, err := simdriver.Open(readOnly)
	if err != nil {
		t.Fatal(err)
	}
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, seen).DeviceGetHandleByIndex(0))
	fill(t, place(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 4, nvml.SUCCESS), nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE)
	if cards, err := root.MIG(); err != nil || len(cards[0].Instances) != 1 {
		t.Errorf("the hardware has %+v, %v", cards, err)
	}
	// Without the hardware at its other place it is as read-only as the root.
	if err := unix.Unmount("/run/nvidia-sim", unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command(filepath.Join(readOnly, "usr/bin/nvidia-smi"), "-L").CombinedOutput()
	if err != nil || !strings.Contains(string(output), "MIG 3g.71gb") {
		t.Errorf("nvidia-smi -L: %v\n%s", err, output)
	}
}
