package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// MIG is how a GPU can be divided into partitions that hardware keeps apart (Multi-Instance GPU).
type MIG struct {
	Enabled bool `json:"enabled"` // the GPU is in MIG mode: only its partitions can run anything
	// Switchable: the mode can be changed while the GPU is idle. Before Hopper it takes a reset.
	Switchable bool        `json:"switchable"`
	Profiles   []Profile   `json:"profiles"`
	Partitions []Partition `json:"partitions,omitempty"` // that exist now
}

// Profile is a kind of partition, as NVML describes it.
type Profile struct {
	Name            string      `json:"name"`   // "1g.10gb+me"
	ID              int         `json:"id"`     // of the GPU instance profile
	Slices          int         `json:"slices"` // compute slices
	Max             int         `json:"max"`    // partitions of this kind that the GPU can have at once
	MemoryBytes     uint64      `json:"memoryBytes"`
	Multiprocessors int         `json:"multiprocessors"`
	CopyEngines     int         `json:"copyEngines"`
	Decoders        int         `json:"decoders"`
	Encoders        int         `json:"encoders"`
	JPEGEngines     int         `json:"jpegEngines"`
	OFAEngines      int         `json:"ofaEngines"`
	Placements      []Placement `json:"placements"`
}

// Visible are the UUIDs of what containers can be given of the GPU now: of one in MIG mode its partitions.
func (d Device) Visible() (uuids []string) {
	if d.MIG == nil || !d.MIG.Enabled {
		return []string{d.UUID}
	}
	for _, p := range d.MIG.Partitions {
		if p.UUID != "" {
			uuids = append(uuids, p.UUID)
		}
	}
	return uuids
}

// Placement is where in a GPU's memory a partition lies, in slices.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// Overlaps says whether two placements have a slice in common.
func (p Placement) Overlaps(other Placement) bool {
	return p.Start < other.Start+other.Size && other.Start < p.Start+p.Size
}

// Partition is one that exists. Its UUID is given anew at each creation.
type Partition struct {
	UUID      string    `json:"uuid"`
	Profile   string    `json:"profile"`
	Placement Placement `json:"placement"`
}

// At says whether the partition is of this profile and place.
func (p Partition) At(profile string, placement Placement) bool {
	return p.Profile == profile && p.Placement == placement
}

// Slot is a place in a GPU where a partition of some profile is or can be made.
type Slot struct {
	Profile   Profile
	Placement Placement
	// UUID of the partition that somebody else made there. Empty: the partition is made when it is needed.
	UUID string
}

// Allocatable is how many bytes of the slot can be given out, floored to step.
func (s Slot) Allocatable(step uint64) uint64 {
	return s.Profile.MemoryBytes - s.Profile.MemoryBytes%step
}

var profileLabel = strings.NewReplacer("-", "-no-", ".", "-", "+", "-", ",", "-")

// SlotName is the name under which a slot is published, a DNS label.
func (d Device) SlotName(s Slot) string {
	return fmt.Sprintf("%s-mig-%s-%d", d.Name(), profileLabel.Replace(s.Profile.Name), s.Placement.Start)
}

// Profile finds a profile by its name.
func (m *MIG) Profile(name string) (Profile, bool) {
	i := slices.IndexFunc(m.Profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return m.Profiles[i], true
}

// Offers says what of the GPU can be given out: the GPU itself, to be whole or shared, and its slots. Where a mode takes
// a reset, the GPU offers what the mode it is in allows. The partitions of the GPU are taken for other people's: they
// are offered as they are, and nothing that would be in their way is. The slots come in the order in which a scheduler that
// takes the first that fits should try them: small before large, and of one size that first which is in the way
// of the fewest others.
func (d Device) Offers() (whole bool, slots []Slot) {
	if d.MIG == nil || !d.MIG.Enabled && !d.MIG.Switchable {
		return true, nil
	}
	all := d.MIG.slots()
	for _, s := range all {
		owner, taken := d.MIG.inTheWay(s)
		if !taken || owner.UUID != "" && owner.At(s.Profile.Name, s.Placement) {
			s.UUID = owner.UUID
			slots = append(slots, s)
		}
	}
	return d.MIG.Switchable && len(d.MIG.Partitions) == 0, slots
}

// slots are all places of all profiles, in the order of Offers.
func (m *MIG) slots() []Slot {
	var all []Slot
	for _, p := range m.Profiles {
		for _, place := range p.Placements {
			all = append(all, Slot{Profile: p, Placement: place})
		}
	}
	blocked := func(s Slot) (n int) {
		for _, other := range all {
			if other.Profile.Name != s.Profile.Name && other.Placement.Overlaps(s.Placement) {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(all, func(a, b Slot) int {
		return cmp.Or(
			cmp.Compare(a.Profile.Slices, b.Profile.Slices),
			cmp.Compare(a.Placement.Size, b.Placement.Size),
			// What every profile of the size has comes before what has an extra.
			cmp.Compare(len(a.Profile.Name), len(b.Profile.Name)),
			cmp.Compare(a.Profile.Name, b.Profile.Name),
			cmp.Compare(blocked(a), blocked(b)),
			cmp.Compare(a.Placement.Start, b.Placement.Start),
		)
	})
	return all
}

// inTheWay finds a partition that lies where the slot is.
func (m *MIG) inTheWay(s Slot) (Partition, bool) {
	i := slices.IndexFunc(m.Partitions, func(p Partition) bool { return p.Placement.Overlaps(s.Placement) })
	if i < 0 {
		return Partition{}, false
	}
	return m.Partitions[i], true
}
