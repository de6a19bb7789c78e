package driver

import (
	resourceapi "k8s.io/api/resource/v1"

	"aliquot.dev/aliquot/internal/gpu"
)

// fits is the model's own arithmetic.
func (m *model) fits(claim *resourceapi.ResourceClaim) bool {
	held := map[string]*holding{}
	for uid := range m.prepared {
		if uid != string(claim.UID) {
			add(m.claims[uid], held)
		}
	}
	add(claim, held)
	for name, h := range held {
		if total := m.offers[name].bytes; h.memory > total || h.cores > 100 || h.whole && h.sharers > 1 {
			return false
		}
		for other := range held {
			if other != name && m.offers[name].excludes(m.offers[other]) {
				return false
			}
		}
	}
	return true
}

// holding is what claims have of a device.
type holding struct {
	memory, cores int64
	sharers       int
	whole         bool
}

func add(claim *resourceapi.ResourceClaim, held map[string]*holding) {
	for _, result := range claim.Status.Allocation.Devices.Results {
		h := held[result.Device]
		if h == nil {
			h = &holding{}
			held[result.Device] = h
		}
		h.sharers++
		if result.ShareID == nil {
			h.whole = true
			continue
		}
		memory, cores := result.ConsumedCapacity["memory"], result.ConsumedCapacity["cores"]
		h.memory += memory.Value()
		h.cores += cores.Value()
	}
}

// offer is a device as the model knows it: a GPU has all slices from 0 to 100.
type offer struct {
	gpu        string
	start, end int
	bytes      int64
}

func (o offer) excludes(other offer) bool {
	return o.gpu == other.gpu && o.start < other.end && other.start < o.end
}

// offersOf lists what nodes have that nobody else partitions.
func offersOf(devices []gpu.Device) map[string]offer {
	offers := map[string]offer{}
	for _, device := range devices {
		_, slots := device.Offers()
		offers[device.Name()] = offer{gpu: device.UUID, end: 100, bytes: int64(device.Allocatable(1 << 20))}
		for _, s := range slots {
			offers[device.SlotName(s)] = offer{gpu: device.UUID, start: s.Placement.Start, end: s.Placement.Start + s.Placement.Size, bytes: int64(s.Allocatable(1 << 20))}
		}
	}
	return offers
}
