package inventory

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// Gate is a feature gate of Kubernetes whose fields every node's slices have. An API server in which it is off drops
// them in silence.
type Gate struct {
	Name string
	Lost string // what is not had without it
}

// The gates that a node's slices can tell of.
var (
	ConsumableCapacity   = Gate{"DRAConsumableCapacity", "GPUs cannot be shared, each claim takes a whole one"}
	PartitionableDevices = Gate{"DRAPartitionableDevices", "the scheduler gives out a GPU and its MIG partitions at once, which the node then refuses"}
)

// Dropped lists the gates that are off, as a node's slices tell. Every device of ours may be allocated many times, and
// every partition that is not an administrator's draws on its GPU's counters.
func Dropped(stored []resourceapi.ResourceSlice) (off []Gate) {
	add := func(gate Gate, isOff bool) {
		if isOff && !slices.Contains(off, gate) {
			off = append(off, gate)
		}
	}
	for i := range stored {
		for _, device := range stored[i].Spec.Devices {
			attribute := func(name resourceapi.QualifiedName) string {
				return ptr.Deref(device.Attributes[name].StringValue, "")
			}
			add(ConsumableCapacity, !ptr.Deref(device.AllowMultipleAllocations, false))
			empty := attribute(v1alpha1.AttributeType) == v1alpha1.TypeMIG && attribute(v1alpha1.AttributeUUID) == ""
			add(PartitionableDevices, empty && len(device.ConsumesCounters) == 0)
		}
	}
	slices.SortFunc(off, func(a, b Gate) int { return strings.Compare(a.Name, b.Name) })
	return off
}
