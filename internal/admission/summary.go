package admission

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// summary is what checks need of the slices. It is made once for each state of them: a cluster of a thousand nodes has a
// hundred thousand devices, counting partitions, of a few kinds.
type summary struct {
	names names
	kinds []kind
}

// kind are devices that differ in no more than the values of their places. There is at least one.
type kind []member

type member struct {
	place   string // pool and name, for messages
	visible dracel.Device
}

// places are attributes in which like devices differ. Few selectors read them.
var places = []resourceapi.QualifiedName{
	v1alpha1.AttributeUUID, v1alpha1.AttributeIndex, v1alpha1.AttributeParentUUID, v1alpha1.AttributeParentIndex,
	"resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode",
}

var seed = maphash.MakeSeed()

// summarize returns the summary of slices, that from the last time where they are the same.
func (c *Checker) summarize(published []resourceapi.ResourceSlice) *summary {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.summary != nil && len(published) > 0 && len(published) == len(c.published) && &published[0] == &c.published[0] {
		return c.summary // the very list
	}
	state, known := stateOf(published)
	c.published = published
	if known && c.summary != nil && state == c.state {
		return c.summary
	}
	c.state, c.summary = state, newSummary(published)
	return c.summary
}

// stateOf identifies the state of slices, where they say in which version they are. It is a sum, since a cache lists them in
// another order each time.
func stateOf(published []resourceapi.ResourceSlice) (state uint64, known bool) {
	for i := range published {
		meta := &published[i].ObjectMeta
		if meta.ResourceVersion == "" {
			return 0, false
		}
		state += maphash.Comparable(seed, [...]string{meta.Name, string(meta.UID), meta.ResourceVersion})
	}
	return state, true
}

func newSummary(published []resourceapi.ResourceSlice) *summary {
	s := &summary{}
	// So that of like devices always the same one is named.
	published = slices.SortedStableFunc(slices.Values(published), func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	seen := map[uint64]int{}
	for _, slice := range published {
		if slice.Spec.Driver != v1alpha1.DriverName {
			continue
		}
		for _, device := range slice.Spec.Devices {
			m := member{place: slice.Spec.Pool.Name + "/" + device.Name, visible: visible(device)}
			id := m.kind()
			i, known := seen[id]
			if !known {
				i = len(s.kinds)
				seen[id] = i
				s.kinds = append(s.kinds, nil)
			}
			s.kinds[i] = append(s.kinds[i], m)
		}
	}
	s.names = namesOf(firsts(s.kinds))
	return s
}

// kind is the same for devices that have the same but for the values of their places: a selector that fails where a place is
// not told fails on all of a kind. It is a sum, so that the order of names does not matter.
func (m member) kind() uint64 {
	var sum uint64
	var h maphash.Hash
	h.SetSeed(seed)
	add := func(name resourceapi.QualifiedName, value string, number int64) {
		h.Reset()
		h.WriteString(string(name))
		h.WriteByte(0)
		h.WriteString(value)
		var bytes [8]byte
		binary.LittleEndian.PutUint64(bytes[:], uint64(number))
		h.Write(bytes[:])
		sum += h.Sum64()
	}
	for name, a := range m.visible.Attributes {
		if slices.Contains(places, name) {
			add(name, "place", 0)
		} else {
			add(name, ptr.Deref(a.StringValue, "")+ptr.Deref(a.VersionValue, ""), ptr.Deref(a.IntValue, number(ptr.Deref(a.BoolValue, false))))
		}
	}
	for name, c := range m.visible.Capacity {
		add(name, "capacity", c.Value.Value())
	}
	add("", "", number(ptr.Deref(m.visible.AllowMultipleAllocations, false)))
	return sum
}

func number(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// firsts are one device of each kind.
func firsts(kinds []kind) []member {
	all := make([]member, len(kinds))
	for i, k := range kinds {
		all[i] = k[0]
	}
	return all
}

// readPlaces says whether one device of a kind does not show what selectors do on the others.
func readPlaces(all []*selector) bool {
	return slices.ContainsFunc(all, func(s *selector) bool {
		return slices.ContainsFunc(places, func(name resourceapi.QualifiedName) bool {
			return strings.Contains(s.program.Expression, string(name[strings.LastIndex(string(name), "/")+1:]))
		})
	})
}
