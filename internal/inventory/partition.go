package inventory

import (
	"fmt"
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
)

// partition is a slot as the scheduler sees it. Like a GPU it may be shared, and a claim that asks for no memory has it
// to itself.
func partition(d gpu.Device, s gpu.Slot) resourceapi.Device {
	device := resourceapi.Device{
		Name:                     d.SlotName(s),
		AllowMultipleAllocations: ptr.To(true),
		Attributes:               PartitionAttributes(d, s),
		Capacity:                 shareable(s.Allocatable(v1alpha1.MemoryStep)),
	}
	for name, amount := range map[resourceapi.QualifiedName]int{
		v1alpha1.CapacityMultiprocessors: s.Profile.Multiprocessors,
		v1alpha1.CapacityCopyEngines:     s.Profile.CopyEngines,
		v1alpha1.CapacityDecoders:        s.Profile.Decoders,
		v1alpha1.CapacityEncoders:        s.Profile.Encoders,
		v1alpha1.CapacityJPEGEngines:     s.Profile.JPEGEngines,
		v1alpha1.CapacityOFAEngines:      s.Profile.OFAEngines,
	} {
		device.Capacity[name] = fromNothing(amount)
	}
	if s.UUID == "" {
		device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: d.Name(), Counters: counters(uses(s.Profile, s.Placement))}}
	}
	return device
}

// PartitionAttributes are what a claim's CEL can select a slot by: those of its GPU, but for what names the GPU, and its own.
func PartitionAttributes(d gpu.Device, s gpu.Slot) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	attributes := Attributes(d)
	delete(attributes, v1alpha1.AttributeIndex)
	delete(attributes, v1alpha1.AttributeUUID)
	attributes[v1alpha1.AttributeType] = resourceapi.DeviceAttribute{StringValue: ptr.To(v1alpha1.TypeMIG)}
	attributes[v1alpha1.AttributeProfile] = resourceapi.DeviceAttribute{StringValue: ptr.To(s.Profile.Name)}
	attributes[v1alpha1.AttributeParentUUID] = resourceapi.DeviceAttribute{StringValue: ptr.To(d.UUID)}
	attributes[v1alpha1.AttributeParentIndex] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(d.Index))}
	if s.UUID != "" {
		attributes[v1alpha1.AttributeUUID] = resourceapi.DeviceAttribute{StringValue: ptr.To(s.UUID)}
	}
	return attributes
}

// fromNothing is a capacity of which a claim takes nothing unless it asks for some.
func fromNothing(amount int) resourceapi.DeviceCapacity {
	validRange := &resourceapi.CapacityRequestPolicyRange{Min: count(0), Max: count(amount)}
	if amount > 0 { // the API server refuses a first step beyond the value
		validRange.Step = count(1)
	}
	return resourceapi.DeviceCapacity{
		Value:         *count(amount),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: count(0), ValidRange: validRange},
	}
}

// engines are what a partition has of its GPU beside memory, of which some profiles have more than others.
func engines(p gpu.Profile) map[string]int {
	all := map[string]int{
		"multiprocessors": p.Multiprocessors,
		"copy-engines":    p.CopyEngines,
		"decoders":        p.Decoders,
		"encoders":        p.Encoders,
		"jpeg-engines":    p.JPEGEngines,
		"ofa-engines":     p.OFAEngines,
	}
	maps.DeleteFunc(all, func(_ string, n int) bool { return n == 0 })
	return all
}

// uses is what a partition takes of its GPU. Each memory slice is a counter of its own, so that two partitions fit
// beside each other just where hardware lets them.
func uses(p gpu.Profile, place gpu.Placement) map[string]int {
	used := engines(p)
	for i := range place.Size {
		used[memorySlice(place.Start+i)] = 1
	}
	return used
}

func memorySlice(i int) string { return fmt.Sprintf("memory-slice-%d", i) }

// has is what a GPU has for its partitions. NVML does not tell how many engines that is: it is taken to be what as many
// partitions of one profile have as there can be. So a profile of which there can be one, for want of an engine, stays
// alone, and no engine that is there is kept from a mix of profiles.
func has(m *gpu.MIG) map[string]int {
	total := map[string]int{}
	for _, p := range m.Profiles {
		for name, n := range engines(p) {
			total[name] = max(total[name], n*p.Max)
		}
		for _, place := range p.Placements {
			for i := range place.Size {
				total[memorySlice(place.Start+i)] = 1
			}
		}
	}
	return total
}

// left is what a GPU has when the partitions that others made are taken out.
func left(m *gpu.MIG) map[string]int {
	total := has(m)
	for _, partition := range m.Partitions {
		profile, _ := m.Profile(partition.Profile) // of one that is not offered, the place at least is known
		for name, n := range uses(profile, partition.Placement) {
			total[name] = max(0, total[name]-n)
		}
	}
	return total
}

func counters(amounts map[string]int) map[string]resourceapi.Counter {
	all := make(map[string]resourceapi.Counter, len(amounts))
	for name, n := range amounts {
		all[name] = resourceapi.Counter{Value: *count(n)}
	}
	return all
}

func count(n int) *resource.Quantity {
	return resource.NewQuantity(int64(n), resource.DecimalSI)
}
