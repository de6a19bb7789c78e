// Package inventory says what the scheduler sees of a node: it turns GPUs into the devices of ResourceSlices. It is
// pure: it reads no hardware and writes no object.
package inventory

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
)

// PoolName names a node's pool. It differs from the node's name because drivers that publish a pool of that very name
// meet each other's counters in the scheduler's cache.
func PoolName(nodeName string) string {
	return nodeName + "/gpus"
}

// Resources is everything the node publishes: one pool, one slice a GPU in the order given. First-fit allocation then
// fills the first GPU first, and a change of one GPU rewrites one slice. A node without GPUs has one empty slice, so
// that the pool is known to be empty and not merely late. What GPUs and partitions share out between them is counted in
// slices of its own, since the API allows no slice both. Taints are by the GPU's UUID.
func Resources(nodeName string, devices []gpu.Device, taints map[string][]resourceapi.DeviceTaint) resourceslice.DriverResources {
	var slices []resourceslice.Slice
	var sets []resourceapi.CounterSet
	for _, d := range devices {
		published := Devices(d)
		if len(published) == 0 {
			continue
		}
		for i := range published {
			published[i].Taints = taints[d.UUID]
		}
		slices = append(slices, resourceslice.Slice{Devices: published})
		if counts(d) {
			sets = append(sets, resourceapi.CounterSet{Name: d.Name(), Counters: counters(left(d.MIG))})
		}
	}
	for len(sets) > 0 {
		n := min(len(sets), resourceapi.ResourceSliceMaxCounterSets)
		slices = append(slices, resourceslice.Slice{SharedCounters: sets[:n]})
		sets = sets[n:]
	}
	if len(slices) == 0 {
		slices = append(slices, resourceslice.Slice{})
	}
	return resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{PoolName(nodeName): {Slices: slices}},
	}
}

// counts says whether there are partitions on a GPU, or could be. One that is only shared needs no counters.
func counts(d gpu.Device) bool {
	_, slots := d.Offers()
	return len(slots) > 0
}

// Devices are what is published of a GPU, in the order in which a scheduler that takes the first that fits tries them:
// partitions before the GPU, small before large.
func Devices(d gpu.Device) []resourceapi.Device {
	var published []resourceapi.Device
	whole, slots := d.Offers()
	for _, s := range slots {
		if s.Allocatable(v1alpha1.MemoryStep) > 0 {
			published = append(published, partition(d, s))
		}
	}
	if whole && d.Allocatable(v1alpha1.MemoryStep) > 0 {
		device := Device(d)
		if len(slots) > 0 {
			// All of it: a GPU that is given out is not partitioned, and the reverse.
			device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: d.Name(), Counters: counters(has(d.MIG))}}
		}
		published = append(published, device)
	}
	return published
}

// Device is a GPU as the scheduler sees it, apart from what it has in common with partitions.
func Device(d gpu.Device) resourceapi.Device {
	return resourceapi.Device{
		Name:                     d.Name(),
		AllowMultipleAllocations: ptr.To(true),
		Attributes:               Attributes(d),
		Capacity:                 shareable(d.Allocatable(v1alpha1.MemoryStep)),
	}
}

// shareable are the capacities that shares consume. A claim that asks for no memory gets all of it and so has the device
// to itself; one that asks for no cores competes for what others leave, since a default of all cores would keep it
// pending as soon as anybody held one.
func shareable(bytes uint64) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	memory := quantity(bytes)
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		v1alpha1.CapacityMemory: {
			Value: memory,
			RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: &memory,
				ValidRange: &resourceapi.CapacityRequestPolicyRange{
					Min:  ptr.To(quantity(v1alpha1.MemoryStep)),
					Step: stepWithin(memory, v1alpha1.MemoryStep),
				},
			},
		},
		v1alpha1.CapacityCores: {
			Value: *count(v1alpha1.AllCores),
			RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: count(0),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{
					Min:  count(0),
					Max:  count(v1alpha1.AllCores),
					Step: count(1),
				},
			},
		},
	}
}

// stepWithin is the step of a range that starts at step itself, or nil where one step fills the capacity: the API server
// refuses a range whose first step lies beyond the value.
func stepWithin(value resource.Quantity, step uint64) *resource.Quantity {
	if value.Value() < 2*int64(step) {
		return nil
	}
	return ptr.To(quantity(step))
}

// Attributes are what a claim's CEL can select a GPU by. What the hardware does not tell is left out.
func Attributes(d gpu.Device) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		v1alpha1.AttributeType:  {StringValue: ptr.To(v1alpha1.TypeGPU)},
		v1alpha1.AttributeIndex: {IntValue: ptr.To(int64(d.Index))},
	}
	for name, value := range map[resourceapi.QualifiedName]string{
		v1alpha1.AttributeUUID:                          d.UUID,
		v1alpha1.AttributeProductName:                   d.ProductName,
		v1alpha1.AttributeBrand:                         d.Brand,
		v1alpha1.AttributeArchitecture:                  d.Architecture,
		deviceattribute.StandardDeviceAttributePCIBusID: d.PCIBusID,
		deviceattribute.StandardDeviceAttributePCIeRoot: d.PCIeRoot,
	} {
		if value != "" {
			attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(truncate(value))}
		}
	}
	for name, value := range map[resourceapi.QualifiedName]string{
		v1alpha1.AttributeComputeCapability: d.ComputeCapability,
		v1alpha1.AttributeDriverVersion:     d.DriverVersion,
		v1alpha1.AttributeCUDADriverVersion: d.CUDADriverVersion,
	} {
		if version, err := semver(value); err == nil {
			attributes[name] = resourceapi.DeviceAttribute{VersionValue: ptr.To(version)}
		}
	}
	if d.NUMANode != nil {
		attributes[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(*d.NUMANode))}
	}
	return attributes
}

// semver turns a version as NVIDIA writes it ("580.95.05", "13.0") into the strict semantic version that a version
// attribute must be: three numbers without leading zeros.
func semver(version string) (string, error) {
	fields := strings.Split(version, ".")
	if len(fields) > 3 {
		return "", fmt.Errorf("version %q has more than three fields", version)
	}
	numbers := [3]string{"0", "0", "0"}
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, 63)
		if err != nil {
			return "", fmt.Errorf("version %q: %w", version, err)
		}
		numbers[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(numbers[:], "."), nil
}

// truncate keeps a string attribute within the length that the API server takes.
func truncate(s string) string {
	if len(s) <= resourceapi.DeviceAttributeMaxValueLength {
		return s
	}
	return strings.ToValidUTF8(s[:resourceapi.DeviceAttributeMaxValueLength], "")
}

func quantity(bytes uint64) resource.Quantity {
	return *resource.NewQuantity(int64(bytes), resource.BinarySI)
}
