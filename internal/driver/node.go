package driver

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// node is what the last discovery found, kept up with the partitions made since.
type node struct {
	err     error // why nothing can be prepared now; devices are then those known before
	devices []gpu.Device
	common  specs.ContainerEdits
	edits   map[string]specs.ContainerEdits // by the UUID of a GPU or partition
	skipped []string                        // why other GPUs are left out, as it was told
}

// byName finds what is offered under a name: a GPU, or a slot of it.
func (n node) byName(name string) (gpu.Device, *gpu.Slot, bool) {
	for _, device := range n.devices {
		rest, ok := strings.CutPrefix(name, device.Name())
		if !ok || rest != "" && rest[0] != '-' {
			continue // what it offers need not be worked out
		}
		whole, slots := device.Offers()
		if whole && rest == "" {
			return device, nil, true
		}
		for i := range slots {
			if device.SlotName(slots[i]) == name {
				return device, &slots[i], true
			}
		}
	}
	return gpu.Device{}, nil, false
}

// whyNot says what keeps a device from being offered.
func (n node) whyNot(name string) string {
	parent, _, _ := strings.Cut(name, "-mig-")
	i := slices.IndexFunc(n.devices, func(d gpu.Device) bool { return d.Name() == parent })
	if i < 0 {
		return "its GPU is lost or was never here"
	}
	switch mig := n.devices[i].MIG; {
	case mig == nil:
		return "its GPU has no partitions"
	case parent == name && len(mig.Partitions) > 0:
		return "an administrator has partitioned the GPU"
	case parent == name:
		return "its GPU is in MIG mode, and leaving it takes a reset"
	case !mig.Enabled && !mig.Switchable:
		return "its GPU is not in MIG mode, and entering it takes a reset"
	case len(mig.Partitions) > 0:
		return "the GPU has no such profile or place, or partitions that an administrator made are in the way"
	default:
		return "its GPU has no such profile or place"
	}
}

// attributes are what the scheduler knows of a device by name.
func (n node) attributes(name string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	device, slot, ok := n.byName(name)
	switch {
	case !ok:
		return nil
	case slot != nil:
		return inventory.PartitionAttributes(device, *slot)
	default:
		return inventory.Attributes(device)
	}
}

func (n node) gpu(uuid string) (gpu.Device, bool) {
	i := slices.IndexFunc(n.devices, func(d gpu.Device) bool { return d.UUID == uuid })
	if i < 0 {
		return gpu.Device{}, false
	}
	return n.devices[i], true
}

// partition finds the partition that an allocation lies in, if there is one now.
func (n node) partition(a allocation) (gpu.Partition, bool) {
	device, ok := n.gpu(a.GPU)
	if !ok || device.MIG == nil || a.Partition == nil {
		return gpu.Partition{}, false
	}
	i := slices.IndexFunc(device.MIG.Partitions, a.Partition.is)
	if i < 0 {
		return gpu.Partition{}, false
	}
	return device.MIG.Partitions[i], true
}

// is says whether a partition that exists is the one that was allocated.
func (p partition) is(found gpu.Partition) bool {
	return found.At(p.Profile, p.Placement)
}

// uuid is that of the GPU or partition that containers see.
func (n node) uuid(a allocation) (string, error) {
	if a.Partition == nil {
		return a.GPU, nil
	}
	if found, ok := n.partition(a); ok && found.UUID != "" {
		return found.UUID, nil
	}
	return "", fmt.Errorf("partition %s of GPU %s is not there now", a.Device, a.GPU)
}
