package sharequota

import (
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// Amount is what claims count for.
type Amount struct {
	Memory int64 // bytes
	Cores  int64 // percent of one device's time
	Shares int64 // devices, whole or in part
}

// Claim returns what a claim counts for: what it was allocated, else what it asks for. largest is the memory of the
// largest device in the cluster, in bytes; ours says which device classes are of this driver.
func Claim(claim *resourceapi.ResourceClaim, largest int64, ours func(class string) bool) Amount {
	if claim.Status.Allocation == nil {
		return Spec(&claim.Spec, largest, ours)
	}
	var total Amount
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == v1alpha1.DriverName && !ptr.Deref(result.AdminAccess, false) {
			total = total.plus(allocated(result, largest))
		}
	}
	return total
}

// allocated is what one result consumes. One that says nothing of it has the whole device.
func allocated(result resourceapi.DeviceRequestAllocationResult, largest int64) Amount {
	amount := Amount{Memory: largest, Shares: 1}
	if len(result.ConsumedCapacity) == 0 {
		amount.Cores = v1alpha1.AllCores
		return amount
	}
	if memory, ok := v1alpha1.Consumed(result.ConsumedCapacity, v1alpha1.CapacityMemory); ok {
		amount.Memory = bytes(memory)
	}
	if cores, ok := v1alpha1.Consumed(result.ConsumedCapacity, v1alpha1.CapacityCores); ok {
		amount.Cores = max(cores.Value(), 0)
	}
	return amount
}

// Spec returns what a claim asks for. Of alternatives it counts the most of each amount, since any may be chosen. A request
// for all devices that match counts as one until it is allocated: how many they are is not known before.
func Spec(spec *resourceapi.ResourceClaimSpec, largest int64, ours func(class string) bool) Amount {
	var total Amount
	for _, request := range spec.Devices.Requests {
		if r := request.Exactly; r != nil && ours(r.DeviceClassName) && !ptr.Deref(r.AdminAccess, false) {
			total = total.plus(asked(r.Capacity, r.AllocationMode, r.Count, largest))
		}
		var most Amount
		for _, r := range request.FirstAvailable {
			if ours(r.DeviceClassName) {
				most = most.most(asked(r.Capacity, r.AllocationMode, r.Count, largest))
			}
		}
		total = total.plus(most)
	}
	return total
}

// asked is what one request asks for. No memory asked for is a whole device.
func asked(capacity *resourceapi.CapacityRequirements, mode resourceapi.DeviceAllocationMode, count, largest int64) Amount {
	one := Amount{Memory: largest, Shares: 1}
	if capacity != nil {
		if memory, ok := v1alpha1.Consumed(capacity.Requests, v1alpha1.CapacityMemory); ok {
			one.Memory = bytes(memory)
		}
		if cores, ok := v1alpha1.Consumed(capacity.Requests, v1alpha1.CapacityCores); ok {
			one.Cores = max(cores.Value(), 0)
		}
	}
	if mode == resourceapi.DeviceAllocationModeAll {
		return one
	}
	return one.times(max(count, 1))
}

// bytes are rounded as the scheduler does, up to the step in which memory is shared out, so that a claim counts for no more
// when it is allocated. The API server takes negative amounts, which must not make room for others.
func bytes(q resource.Quantity) int64 {
	const step = v1alpha1.MemoryStep
	asked := max(q.Value(), step)
	if asked > math.MaxInt64-step {
		return math.MaxInt64
	}
	return (asked + step - 1) / step * step
}

// Largest returns the memory of the largest device that slices publish, in bytes.
func Largest(slices []resourceapi.ResourceSlice) int64 {
	var largest int64
	for i := range slices {
		if slices[i].Spec.Driver != v1alpha1.DriverName {
			continue
		}
		for _, device := range slices[i].Spec.Devices {
			memory := device.Capacity[v1alpha1.CapacityMemory].Value
			largest = max(largest, memory.Value())
		}
	}
	return largest
}

func (a Amount) plus(b Amount) Amount {
	return Amount{Memory: add(a.Memory, b.Memory), Cores: add(a.Cores, b.Cores), Shares: add(a.Shares, b.Shares)}
}

// minus is never below nothing.
func (a Amount) minus(b Amount) Amount {
	return Amount{Memory: max(a.Memory-b.Memory, 0), Cores: max(a.Cores-b.Cores, 0), Shares: max(a.Shares-b.Shares, 0)}
}

func (a Amount) most(b Amount) Amount {
	return Amount{Memory: max(a.Memory, b.Memory), Cores: max(a.Cores, b.Cores), Shares: max(a.Shares, b.Shares)}
}

func (a Amount) times(count int64) Amount {
	return Amount{Memory: multiply(a.Memory, count), Cores: multiply(a.Cores, count), Shares: count}
}

// add and multiply amounts that are not negative. What is too large stays at the most there is: a sum that wrapped around
// would make room.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func multiply(a, count int64) int64 {
	if a > math.MaxInt64/count {
		return math.MaxInt64
	}
	return a * count
}

// written is the amount as a quota's status has it.
func (a Amount) written() v1alpha1.ShareAmounts {
	return v1alpha1.ShareAmounts{Memory: *resource.NewQuantity(a.Memory, resource.BinarySI), Cores: a.Cores, Shares: a.Shares}
}

func read(a v1alpha1.ShareAmounts) Amount {
	return Amount{Memory: a.Memory.Value(), Cores: a.Cores, Shares: a.Shares}
}
