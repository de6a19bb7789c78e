// Package quota says what a share may use of a GPU and keeps the ledger that refuses to give out more than a GPU has.
// It is pure: it stores nothing and enforces nothing in a container.
package quota

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// Limits is what one share may use of one device, a GPU or a partition.
type Limits struct {
	// Whole marks a share that is the device itself: nothing limits it, and nothing may be beside it.
	Whole bool `json:"whole,omitempty"`
	// MemoryBytes of device memory.
	MemoryBytes uint64 `json:"memoryBytes"`
	// CorePercent of the device's time, 0 to 100; 0 is best effort.
	CorePercent int `json:"corePercent"`
	// CorePolicy is fixed unless class or claim say otherwise.
	CorePolicy v1alpha1.CorePolicy `json:"corePolicy,omitempty"`
	// Unenforced marks a share that is counted and not held.
	Unenforced bool `json:"unenforced,omitempty"`
	// Priority of the share among those that compete for idle cores.
	Priority int `json:"priority,omitempty"`
}

// For says what the scheduler granted with an allocation result, of a device that has total bytes to give out. The grant
// is what it recorded as consumed, not what the claim asked. A result without shareID or without consumed memory, which
// some schedulers still write, means the whole device. Amounts that no scheduler would record (negative, fractional,
// beyond the device) are errors that name the field.
func For(result resourceapi.DeviceRequestAllocationResult, total uint64) (Limits, error) {
	whole := Limits{Whole: true, MemoryBytes: total, CorePercent: v1alpha1.AllCores}
	consumed, ok := v1alpha1.Consumed(result.ConsumedCapacity, v1alpha1.CapacityMemory)
	if result.ShareID == nil || !ok {
		return whole, nil
	}
	memory, exact := consumed.AsInt64()
	if !exact || memory <= 0 {
		return Limits{}, fmt.Errorf("consumedCapacity[%s] is %s: want a positive number of bytes", v1alpha1.CapacityMemory, consumed.String())
	}
	if uint64(memory) > total {
		return Limits{}, fmt.Errorf("consumedCapacity[%s] is %d bytes: %s has %d; delete the claim so that it is allocated anew",
			v1alpha1.CapacityMemory, memory, result.Device, total)
	}
	cores, err := corePercent(result)
	if err != nil {
		return Limits{}, err
	}
	if uint64(memory) == total && (cores == 0 || cores == v1alpha1.AllCores) {
		return whole, nil
	}
	return Limits{MemoryBytes: uint64(memory), CorePercent: cores, CorePolicy: v1alpha1.CoreFixed}, nil
}

func corePercent(result resourceapi.DeviceRequestAllocationResult) (int, error) {
	consumed, ok := v1alpha1.Consumed(result.ConsumedCapacity, v1alpha1.CapacityCores)
	if !ok {
		return 0, nil
	}
	cores, exact := consumed.AsInt64()
	if !exact || cores < 0 || cores > v1alpha1.AllCores {
		return 0, fmt.Errorf("consumedCapacity[%s] is %s: want a whole percentage from 0 to %d",
			v1alpha1.CapacityCores, consumed.String(), v1alpha1.AllCores)
	}
	return int(cores), nil
}
