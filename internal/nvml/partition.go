package nvml

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"aliquot.dev/aliquot/internal/gpu"
)

// card is a GPU while its partitions are changed.
type card struct {
	node   *Node
	handle nvml.Device
	nvlib  device.Interface
	total  uint64 // bytes of memory
}

// onCard opens NVML and a GPU for one change.
func (n *Node) onCard(uuid string, change func(card) error) error {
	lib, shutdown, err := n.open()
	if err != nil {
		return err
	}
	defer shutdown()
	handle, ret := lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("open GPU %s: %w", uuid, ret)
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("read memory of GPU %s: %w", uuid, ret)
	}
	return change(card{node: n, handle: handle, nvlib: device.New(lib), total: memory.Total})
}

// SetMIGMode turns a GPU's MIG mode on or off if that takes no reset. It is an error to turn it off while there are
// partitions, whoever made them.
func (n *Node) SetMIGMode(uuid string, enable bool) error {
	err := n.onCard(uuid, func(c card) error { return n.setMode(c.handle, enable) })
	if err != nil {
		return fmt.Errorf("turn MIG mode of GPU %s %s: %w", uuid, map[bool]string{true: "on", false: "off"}[enable], err)
	}
	return nil
}

// FindPartition looks for a partition at the exact place. It has no UUID if it is half made or divided further.
func (n *Node) FindPartition(uuid, profile string, place gpu.Placement) (partition gpu.Partition, ok bool, err error) {
	err = n.onCard(uuid, func(c card) error {
		partition, ok, err = c.look(profile, place)
		return err
	})
	if err != nil {
		return gpu.Partition{}, false, fmt.Errorf("look for partition %s at %d of GPU %s: %w", profile, place.Start, uuid, err)
	}
	return partition, ok, nil
}

// CreatePartition makes a partition of a GPU at the exact place, in MIG mode, which is turned on if that takes no reset.
// What is there already of that profile and place is completed, so that it may be called again after it was killed. When
// it fails, it takes back what it made.
func (n *Node) CreatePartition(uuid, profile string, place gpu.Placement) (partition gpu.Partition, err error) {
	err = n.onCard(uuid, func(c card) error {
		partition, err = c.create(profile, place)
		return err
	})
	if err != nil {
		return gpu.Partition{}, fmt.Errorf("make partition %s at %d of GPU %s: %w", profile, place.Start, uuid, err)
	}
	return partition, nil
}

// DestroyPartition removes a partition. One that is not there is no error.
func (n *Node) DestroyPartition(uuid, profile string, place gpu.Placement) error {
	err := n.onCard(uuid, func(c card) error { return c.destroyAt(profile, place) })
	if err != nil {
		return fmt.Errorf("remove partition %s at %d of GPU %s: %w", profile, place.Start, uuid, err)
	}
	return nil
}

func (c card) create(profile string, place gpu.Placement) (partition gpu.Partition, err error) {
	var made undo
	defer func() {
		if err != nil {
			err = errors.Join(err, made.run())
		}
	}()
	info, err := c.profile(profile)
	if err != nil {
		return gpu.Partition{}, err
	}
	if err := c.placeable(info, place); err != nil {
		return gpu.Partition{}, err
	}
	instance, err := c.findIn(info, place, &made)
	if err != nil {
		return gpu.Partition{}, err
	}
	if instance == nil {
		at := nvml.GpuInstancePlacement{Start: uint32(place.Start), Size: uint32(place.Size)}
		var ret nvml.Return
		if instance, ret = c.handle.CreateGpuInstanceWithPlacement(&info, &at); ret != nvml.SUCCESS {
			return gpu.Partition{}, fmt.Errorf("create GPU instance: %w", ret)
		}
		made.add("destroy GPU instance", instance.Destroy)
	}
	uuid, err := c.complete(instance, info.SliceCount, &made)
	if err != nil {
		return gpu.Partition{}, err
	}
	return gpu.Partition{UUID: uuid, Profile: profile, Placement: place}, nil
}

// undo takes back, last first, what a failed change has done.
type undo []func() error

func (u *undo) add(what string, step func() nvml.Return) {
	*u = append(*u, func() error {
		if ret := step(); ret != nvml.SUCCESS {
			return fmt.Errorf("take back: %s: %w", what, ret)
		}
		return nil
	})
}

func (u *undo) run() error {
	var errs []error
	for _, step := range slices.Backward(*u) {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}

// findIn is find in MIG mode, which is turned on. A GPU that was not in it has nothing to be found, and is not searched: if
// it cannot be, the mode could not be taken back either.
func (c card) findIn(info nvml.GpuInstanceProfileInfo, place gpu.Placement, made *undo) (nvml.GpuInstance, error) {
	mode, _, ret := c.handle.GetMigMode()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read MIG mode: %w", ret)
	}
	if mode == nvml.DEVICE_MIG_ENABLE {
		return c.find(info, place)
	}
	if err := c.node.setMode(c.handle, true); err != nil {
		return nil, err
	}
	*made = append(*made, func() error {
		if err := c.node.setMode(c.handle, false); err != nil {
			return fmt.Errorf("take back: %w", err)
		}
		return nil
	})
	return nil, nil
}

// placeable is asked before the mode is changed for nothing.
func (c card) placeable(info nvml.GpuInstanceProfileInfo, place gpu.Placement) error {
	places, ret := c.handle.GetGpuInstancePossiblePlacements(&info)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("read the placements of the profile: %w", ret)
	}
	if !slices.Contains(places, nvml.GpuInstancePlacement{Start: uint32(place.Start), Size: uint32(place.Size)}) {
		return fmt.Errorf("the profile has no placement of %d slices at %d", place.Size, place.Start)
	}
	return nil
}

// profile finds what NVML calls a profile.
func (c card) profile(name string) (nvml.GpuInstanceProfileInfo, error) {
	for index := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ok, err := profileInfo(c.handle, index)
		if err != nil {
			return info, err
		}
		if ok && profileName(c.nvlib, c.handle, index, info, c.total) == name {
			return info, nil
		}
	}
	return nvml.GpuInstanceProfileInfo{}, fmt.Errorf("the GPU has no MIG profile %q", name)
}

// find is nil where there is no instance of that profile and place.
func (c card) find(info nvml.GpuInstanceProfileInfo, place gpu.Placement) (nvml.GpuInstance, error) {
	instances, ret := c.handle.GetGpuInstances(&info)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("list GPU instances: %w", ret)
	}
	for _, instance := range instances {
		found, ret := instance.GetInfo()
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("read GPU instance: %w", ret)
		}
		if int(found.Placement.Start) == place.Start && int(found.Placement.Size) == place.Size {
			return instance, nil
		}
	}
	return nil, nil
}

// complete gives a GPU instance the compute instance that is all of it, and returns the UUID that they have then.
func (c card) complete(instance nvml.GpuInstance, sliceCount uint32, made *undo) (string, error) {
	info, ret := instance.GetInfo()
	if ret != nvml.SUCCESS {
		return "", fmt.Errorf("read GPU instance: %w", ret)
	}
	present, err := computeInstances(instance)
	if err != nil {
		return "", err
	}
	if len(present) == 0 {
		profile, err := wholeProfile(instance, sliceCount)
		if err != nil {
			return "", err
		}
		compute, ret := instance.CreateComputeInstance(&profile)
		if ret != nvml.SUCCESS {
			return "", fmt.Errorf("create compute instance: %w", ret)
		}
		made.add("destroy compute instance", compute.Destroy)
	}
	uuids, err := uuidsByInstance(c.handle)
	if err != nil {
		return "", err
	}
	if uuids[info.Id] == "" {
		return "", fmt.Errorf("GPU instance %d has no MIG device that is all of it", info.Id)
	}
	return uuids[info.Id], nil
}

// wholeProfile is the compute instance profile that takes all slices of an instance.
func wholeProfile(instance nvml.GpuInstance, sliceCount uint32) (nvml.ComputeInstanceProfileInfo, error) {
	index, ok := computeProfiles[sliceCount]
	if !ok {
		return nvml.ComputeInstanceProfileInfo{}, fmt.Errorf("no compute instance profile is known for %d slices", sliceCount)
	}
	profile, ret := instance.GetComputeInstanceProfileInfo(index, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if ret != nvml.SUCCESS {
		return profile, fmt.Errorf("read the compute instance profile of %d slices: %w", sliceCount, ret)
	}
	return profile, nil
}

// computeInstances lists all of a GPU instance, whatever their profile.
func computeInstances(instance nvml.GpuInstance) (all []nvml.ComputeInstance, err error) {
	for index := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		profile, ret := instance.GetComputeInstanceProfileInfo(index, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("read compute instance profile %d: %w", index, ret)
		}
		found, ret := instance.GetComputeInstances(&profile)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("list compute instances: %w", ret)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (c card) look(profile string, place gpu.Placement) (gpu.Partition, bool, error) {
	instance, err := c.present(profile, place)
	if err != nil || instance == nil {
		return gpu.Partition{}, false, err
	}
	info, ret := instance.GetInfo()
	if ret != nvml.SUCCESS {
		return gpu.Partition{}, false, fmt.Errorf("read GPU instance: %w", ret)
	}
	uuids, err := uuidsByInstance(c.handle)
	if err != nil {
		return gpu.Partition{}, false, err
	}
	return gpu.Partition{UUID: uuids[info.Id], Profile: profile, Placement: place}, true, nil
}

// present is find for a GPU that may not be in MIG mode, and then has none.
func (c card) present(profile string, place gpu.Placement) (nvml.GpuInstance, error) {
	mode, _, ret := c.handle.GetMigMode()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read MIG mode: %w", ret)
	}
	if mode != nvml.DEVICE_MIG_ENABLE {
		return nil, nil
	}
	info, err := c.profile(profile)
	if err != nil {
		return nil, err
	}
	return c.find(info, place)
}

func (c card) destroyAt(profile string, place gpu.Placement) error {
	instance, err := c.present(profile, place)
	if err != nil || instance == nil {
		return err
	}
	return destroy(instance)
}

// destroy removes a GPU instance and what is in it. A process that still runs there keeps it, which is an error. What was
// taken of it by then is put back, with a UUID of its own. Killed between, it leaves a GPU instance with less in it, which
// the next destroy removes and the next create completes.
func destroy(instance nvml.GpuInstance) (err error) {
	var taken undo
	defer func() {
		if err != nil {
			err = errors.Join(err, taken.run())
		}
	}()
	computes, err := computeInstances(instance)
	if err != nil {
		return err
	}
	for _, compute := range computes {
		info, ret := compute.GetInfo()
		if ret != nvml.SUCCESS {
			return fmt.Errorf("read compute instance: %w", ret)
		}
		if ret := compute.Destroy(); ret != nvml.SUCCESS {
			return fmt.Errorf("destroy compute instance: %w", ret)
		}
		taken.add("create compute instance", func() nvml.Return {
			profile := nvml.ComputeInstanceProfileInfo{Id: info.ProfileId}
			_, ret := instance.CreateComputeInstanceWithPlacement(&profile, &info.Placement)
			return ret
		})
	}
	if ret := instance.Destroy(); ret != nvml.SUCCESS {
		return fmt.Errorf("destroy GPU instance: %w", ret)
	}
	return nil
}
