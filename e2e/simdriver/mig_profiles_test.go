package simdriver_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"aliquot.dev/aliquot/e2e/simdriver"
)

var byIndex = cmpopts.SortSlices(func(a, b simdriver.MIGProfile) bool { return a.Index < b.Index })

// describedProfiles asks NVML for all profiles of a card, which it tells whether or
// not the card is in MIG mode.
func describedProfiles(t *testing.T, d nvml.Device) []simdriver.MIGProfile {
	t.Helper()
	var profiles []simdriver.MIGProfile
	for i := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfoV(i).V3()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		a := asker{t}
		v1 := ask[nvml.GpuInstanceProfileInfo](a, "profile, version 1")(d.GetGpuInstanceProfileInfo(i))
		v2 := ask[nvml.GpuInstanceProfileInfo_v2](a, "profile, version 2")(d.GetGpuInstanceProfileInfoV(i).V2())
		if v1.Id != info.Id || v2.Id != info.Id || v1.MemorySizeMB != info.MemorySizeMB || v2.Name != info.Name {
			t.Errorf("versions 1, 2 and 3 of a profile are %+v, %+v and %+v", v1, v2, info)
		}
		placements := ask[[]nvml.GpuInstancePlacement](a, "placements")(d.GetGpuInstancePossiblePlacements(&v1))
		name, prefixed := strings.CutPrefix(text(info.Name[:]), "MIG ")
		if !prefixed || len(placements) == 0 {
			t.Fatalf("profile %d is named %q and has %d placements", i, text(info.Name[:]), len(placements))
		}
		p := simdriver.MIGProfile{
			Name: name, Index: i, ID: int(info.Id), Slices: int(info.SliceCount), Instances: int(info.InstanceCount),
			MemoryMiB: info.MemorySizeMB, Multiprocessors: int(info.MultiprocessorCount), CopyEngines: int(info.CopyEngineCount),
			Decoders: int(info.DecoderCount), Encoders: int(info.EncoderCount), JPEG: int(info.JpegCount), OFA: int(info.OfaCount),
			P2P:      info.Capabilities&nvml.GPU_INSTANCE_PROFILE_CAPS_P2P != 0 || v1.IsP2pSupported != 0,
			Graphics: info.Capabilities&nvml.GPU_INSTANCE_PROFILE_CAPS_GFX != 0,
			Size:     int(placements[0].Size),
		}
		for _, placement := range placements {
			p.Starts = append(p.Starts, int(placement.Start))
		}
		profiles = append(profiles, p)
	}
	if _, ret := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_COUNT); len(profiles) > 0 && ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("the profile after the last: %v", ret)
	}
	return profiles
}

// migModels has one card of each model that can be divided.
func migModels(t *testing.T) map[string]simdriver.GPU {
	t.Helper()
	models := map[string]simdriver.GPU{}
	for _, name := range simdriver.Names() {
		for _, gpu := range load(t, name).GPUs {
			if len(gpu.MIGProfiles) > 0 {
				models[gpu.Model] = gpu
			}
		}
	}
	return models
}

// A profile has the name that go-nvlib computes, which tools compare with.
func TestProfilesAreNamedAsGoNVLibNamesThem(t *testing.T) {
	lib := device.New(&mock.Interface{})
	for model, gpu := range migModels(t) {
		for _, p := range gpu.MIGProfiles {
			ci := map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[p.Slices]
			named, err := lib.NewMigProfile(p.Index, ci, 0, p.MemoryMiB, gpu.Memory.Total)
			if err != nil || named.String() != p.Name {
				t.Errorf("%s: %s is %v, %v", model, p.Name, named, err)
			}
		}
	}
}

// What a card is divided into fits in it, and the largest profile has all of it.
func TestProfilesFitTheirCard(t *testing.T) {
	for model, gpu := range migModels(t) {
		largest := slices.MaxFunc(gpu.MIGProfiles, func(a, b simdriver.MIGProfile) int { return a.Size - b.Size })
		if largest.Slices != gpu.MIGDevices {
			t.Errorf("%s: %d slices, but %d MIG devices", model, largest.Slices, gpu.MIGDevices)
		}
		ids := map[int]string{}
		for _, p := range gpu.MIGProfiles {
			if other, ok := ids[p.ID]; ok {
				t.Errorf("%s: %s and %s have one id", model, p.Name, other)
			}
			ids[p.ID] = p.Name
			if uint64(p.Instances)*p.MemoryMiB > gpu.Memory.Total/mib || p.Instances*p.Multiprocessors > gpu.Multiprocessors {
				t.Errorf("%s: %d of %s are more than the card", model, p.Instances, p.Name)
			}
			for _, start := range p.Starts {
				if start+p.Size > largest.Size {
					t.Errorf("%s: %s at %d is beyond the card", model, p.Name, start)
				}
			}
		}
	}
}

// go-nvml's tables for its mock, and where hardware is otherwise. A difference that
// is not listed is an error of one of the two.
func TestProfilesAgreeWithGoNVML(t *testing.T) {
	tables := map[string]gpus.Config{
		"a30": gpus.A30_PCIE_24GB, "a100-40gb": gpus.A100_SXM4_40GB, "a100-80gb": gpus.A100_SXM4_80GB,
		"h100-80gb": gpus.H100_SXM5_80GB, "h200": gpus.H200_SXM5_141GB, "b200": gpus.B200_SXM5_180GB,
	}
	// `nvidia-smi mig -lgipp` of hardware: "{0,4}:4" for 3g, "{0}:8" for 7g and
	// "{0,2,4,6}:2" for 1g with twice the memory. For cards after Ampere the mock
	// counts slices of multiprocessors there, and lets the last one start anywhere.
	sevenSlices := []string{
		"3g: [{0 4} {4 4}], the mock has [{0 3} {4 3}]",
		"7g: [{0 8}], the mock has [{0 7}]",
		"1g twice the memory: [{0 2} {2 2} {4 2} {6 2}], the mock has " +
			"[{0 1} {1 1} {2 1} {3 1} {4 1} {5 1} {6 1}]",
	}
	known := map[string][]string{
		"a30": nil, "a100-40gb": nil, "a100-80gb": nil, "h100-80gb": sevenSlices, "h200": sevenSlices, "b200": sevenSlices,
	}
	got := map[string][]string{}
	for model, table := range tables {
		got[model] = differences(migModels(t)[model].MIGProfiles, table.MIGProfiles)
	}
	if diff := cmp.Diff(known, got, cmpopts.EquateEmpty(), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("differences from go-nvml's tables (-known +found):\n%s", diff)
	}
}

// differences does not look at what the mock has made up or rounded: ids, memory,
// multiprocessors and engines.
func differences(ours []simdriver.MIGProfile, theirs gpus.MIGProfileConfig) []string {
	names := map[int]string{9: "1g twice the memory"}
	var found []string
	left := maps.Clone(theirs.GpuInstanceProfiles)
	for _, p := range ours {
		name := names[p.Index]
		if name == "" {
			name, _, _ = strings.Cut(p.Name, ".")
		}
		other, ok := left[p.Index]
		if !ok {
			found = append(found, fmt.Sprintf("%s: the mock has none", name))
			continue
		}
		delete(left, p.Index)
		if p.Slices != int(other.SliceCount) || p.Instances != int(other.InstanceCount) {
			found = append(found, fmt.Sprintf("%s: %d slices %d times, the mock has %d slices %d times",
				name, p.Slices, p.Instances, other.SliceCount, other.InstanceCount))
		}
		var placements []nvml.GpuInstancePlacement
		for _, start := range p.Starts {
			placements = append(placements, nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)})
		}
		if !slices.Equal(placements, theirs.GpuInstancePlacements[p.Index]) {
			found = append(found, fmt.Sprintf("%s: %v, the mock has %v", name, placements, theirs.GpuInstancePlacements[p.Index]))
		}
	}
	for index := range left {
		found = append(found, fmt.Sprintf("profile %d: only the mock has it", index))
	}
	return found
}
