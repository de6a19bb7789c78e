package nvml

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"aliquot.dev/aliquot/internal/gpu"
)

// migOf describes how a GPU can be partitioned and which partitions it has; nil for one that cannot.
func migOf(nvlib device.Interface, handle nvml.Device, memoryTotal uint64) (*gpu.MIG, error) {
	mode, _, ret := handle.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return nil, nil
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read MIG mode: %w", ret)
	}
	architecture, ret := handle.GetArchitecture()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read architecture: %w", ret)
	}
	// MIG user guide, "Enable MIG Mode": from Hopper on, no reset of the GPU is needed.
	m := &gpu.MIG{Enabled: mode == nvml.DEVICE_MIG_ENABLE, Switchable: architecture >= nvml.DEVICE_ARCH_HOPPER}
	for index := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ok, err := profileInfo(handle, index)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		profile, err := profileOf(nvlib, handle, index, info, memoryTotal)
		if err != nil {
			return nil, err
		}
		m.Profiles = append(m.Profiles, profile)
	}
	if len(m.Profiles) == 0 {
		return nil, nil
	}
	if !m.Enabled {
		return m, nil
	}
	var err error
	m.Partitions, err = partitionsOf(handle, m.Profiles)
	return m, err
}

// profileInfo is false for a profile that the GPU does not have.
func profileInfo(handle nvml.Device, index int) (nvml.GpuInstanceProfileInfo, bool, error) {
	info, ret := handle.GetGpuInstanceProfileInfo(index)
	if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
		return info, false, nil
	}
	if ret != nvml.SUCCESS {
		return info, false, fmt.Errorf("read MIG profile %d: %w", index, ret)
	}
	return info, true, nil
}

func profileOf(nvlib device.Interface, handle nvml.Device, index int, info nvml.GpuInstanceProfileInfo, memoryTotal uint64) (gpu.Profile, error) {
	p := gpu.Profile{
		Name:            profileName(nvlib, handle, index, info, memoryTotal),
		ID:              int(info.Id),
		Slices:          int(info.SliceCount),
		Max:             int(info.InstanceCount),
		MemoryBytes:     info.MemorySizeMB << 20,
		Multiprocessors: int(info.MultiprocessorCount),
		CopyEngines:     int(info.CopyEngineCount),
		Decoders:        int(info.DecoderCount),
		Encoders:        int(info.EncoderCount),
		JPEGEngines:     int(info.JpegCount),
		OFAEngines:      int(info.OfaCount),
	}
	places, ret := handle.GetGpuInstancePossiblePlacements(&info)
	if ret != nvml.SUCCESS {
		return p, fmt.Errorf("read the placements of MIG profile %s: %w", p.Name, ret)
	}
	for _, place := range places {
		p.Placements = append(p.Placements, gpu.Placement{Start: int(place.Start), Size: int(place.Size)})
	}
	return p, nil
}

// computeProfiles are the compute instance profiles that are all of a GPU instance, by its slices.
var computeProfiles = map[uint32]int{
	1: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE,
	2: nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE,
	3: nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE,
	4: nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE,
	6: nvml.COMPUTE_INSTANCE_PROFILE_6_SLICE,
	7: nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
	8: nvml.COMPUTE_INSTANCE_PROFILE_8_SLICE,
}

// profileName is what NVIDIA's own device plugin and MIG manager call a profile. What their library does not know yet has the
// driver's name for it.
func profileName(nvlib device.Interface, handle nvml.Device, index int, info nvml.GpuInstanceProfileInfo, memoryTotal uint64) string {
	profile, err := nvlib.NewMigProfile(index, computeProfiles[info.SliceCount], nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB, memoryTotal)
	if err == nil {
		return profile.String()
	}
	if named, ret := handle.GetGpuInstanceProfileInfoV(index).V2(); ret == nvml.SUCCESS {
		if name := strings.TrimPrefix(text(named.Name[:]), "MIG "); name != "" {
			return name
		}
	}
	return fmt.Sprintf("%dg.%dmb.profile%d", info.SliceCount, info.MemorySizeMB, info.Id)
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

// partitionsOf lists the GPU instances of a GPU in MIG mode. One that is divided further, or has no compute instance yet,
// has no UUID: it is there, but nobody can be given it.
func partitionsOf(handle nvml.Device, profiles []gpu.Profile) (partitions []gpu.Partition, err error) {
	uuids, err := uuidsByInstance(handle)
	if err != nil {
		return nil, err
	}
	for _, profile := range profiles {
		instances, ret := handle.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: uint32(profile.ID), InstanceCount: uint32(profile.Max)})
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("list partitions of profile %s: %w", profile.Name, ret)
		}
		for _, instance := range instances {
			info, ret := instance.GetInfo()
			if ret != nvml.SUCCESS {
				return nil, fmt.Errorf("read a partition of profile %s: %w", profile.Name, ret)
			}
			partitions = append(partitions, gpu.Partition{
				UUID:      uuids[info.Id],
				Profile:   profile.Name,
				Placement: gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)},
			})
		}
	}
	return partitions, nil
}

// uuidsByInstance gives the UUID of the MIG device that is all of a GPU instance.
func uuidsByInstance(handle nvml.Device) (map[uint32]string, error) {
	count, ret := handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count MIG devices: %w", ret)
	}
	uuids := map[uint32]string{}
	for i := range count {
		mig, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // indices have holes
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("open MIG device %d: %w", i, ret)
		}
		instance, uuid, err := wholeInstance(mig)
		if err != nil {
			return nil, fmt.Errorf("read MIG device %d: %w", i, err)
		}
		if uuid != "" {
			uuids[instance] = uuid
		}
	}
	return uuids, nil
}

// wholeInstance has no UUID for a MIG device that is only a part of its GPU instance.
func wholeInstance(mig nvml.Device) (instance uint32, uuid string, err error) {
	id, ret := mig.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return 0, "", ret
	}
	attributes, ret := mig.GetAttributes()
	if ret != nvml.SUCCESS {
		return 0, "", ret
	}
	if attributes.ComputeInstanceSliceCount != attributes.GpuInstanceSliceCount {
		return 0, "", nil
	}
	if uuid, ret = mig.GetUUID(); ret != nvml.SUCCESS {
		return 0, "", ret
	}
	return uint32(id), uuid, nil
}

var (
	errNoReset     = errors.New("the GPU needs a reset to change its MIG mode, which is left to its administrator")
	errPartitioned = errors.New("the GPU has partitions, which keep it in MIG mode")
)

// setMode turns MIG mode on or off where that takes no reset; when it fails, the mode is as it was. The GPU must be idle:
// whoever has a context on it keeps it as it is, and so may a monitoring agent that keeps NVML open, so ours is closed first.
func (n *Node) setMode(handle nvml.Device, enable bool) error {
	want := nvml.DEVICE_MIG_DISABLE
	if enable {
		want = nvml.DEVICE_MIG_ENABLE
	}
	mode, pending, ret := handle.GetMigMode()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("read MIG mode: %w", ret)
	}
	if mode == want && pending == want {
		return nil
	}
	if architecture, ret := handle.GetArchitecture(); ret != nvml.SUCCESS {
		return fmt.Errorf("read architecture: %w", ret)
	} else if architecture < nvml.DEVICE_ARCH_HOPPER {
		return errNoReset
	}
	if mode == nvml.DEVICE_MIG_ENABLE {
		if err := unpartitioned(handle); err != nil {
			return err
		}
	}
	n.releaseMonitors()
	defer n.pauseWatches()()
	return switchMode(handle, want, pending)
}

// unpartitioned makes sure that no change of mode takes partitions along: NVML may reset the GPU for it
// (nvml.h, nvmlDeviceSetMigMode).
func unpartitioned(handle nvml.Device) error {
	for index := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ok, err := profileInfo(handle, index)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		instances, ret := handle.GetGpuInstances(&info)
		if ret != nvml.SUCCESS {
			return fmt.Errorf("list GPU instances: %w", ret)
		}
		if len(instances) > 0 {
			return errPartitioned
		}
	}
	return nil
}

// switchMode puts back which mode is pending if the wanted one does not take effect at once: else the next reset, whoever
// needs it, would change the mode.
func switchMode(handle nvml.Device, want, pending int) error {
	activation, ret := handle.SetMigMode(want)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("set MIG mode to %d: %w", want, ret)
	}
	err := tookEffect(handle, want, activation)
	if err == nil {
		return nil
	}
	if _, ret := handle.SetMigMode(pending); ret != nvml.SUCCESS {
		err = errors.Join(err, fmt.Errorf("take back: set MIG mode to %d: %w", pending, ret))
	}
	return err
}

func tookEffect(handle nvml.Device, want int, activation nvml.Return) error {
	if activation != nvml.SUCCESS {
		return fmt.Errorf("set MIG mode to %d: %w", want, activation)
	}
	mode, _, ret := handle.GetMigMode()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("read MIG mode after it was set to %d: %w", want, ret)
	}
	if mode != want {
		return fmt.Errorf("set MIG mode to %d: it is %d afterwards", want, mode)
	}
	return nil
}
