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
	names   names
	devices []member
	alike   []member // the first of each kind: devices that differ in no more than their places
}

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
	state, known := stateOf(published)
	if known && c.summary != nil && state == c.state {
		return c.summary
	}
	c.state, c.summary = state, newSummary(published)
	return c.summary
}

// stateOf identifies the state of slices, where they say in which version they are.
func stateOf(published []resourceapi.ResourceSlice) (state uint64, known bool) {
	var h maphash.Hash
	h.SetSeed(seed)
	for i := range published {
		meta := &published[i].ObjectMeta
		if meta.ResourceVersion == "" {
			return 0, false
		}
		maphash.WriteComparable(&h, [...]string{meta.Name, string(meta.UID), meta.ResourceVersion})
	}
	return h.Sum64(), true
}

func newSummary(published []resourceapi.ResourceSlice) *summary {
	s := &summary{}
	seen := map[uint64]bool{}
	for _, slice := range published {
		if slice.Spec.Driver != v1alpha1.DriverName {
			continue
		}
		for _, device := range slice.Spec.Devices {
			m := member{place: slice.Spec.Pool.Name + "/" + device.Name, visible: visible(device)}
			s.devices = append(s.devices, m)
			if kind := m.kind(); !seen[kind] {
				seen[kind] = true
				s.alike = append(s.alike, m)
			}
		}
	}
	s.names = namesOf(s.alike)
	return s
}

// kind is the same for devices that have the same but for their places. It is a sum, so that the order of names does not
// matter.
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
		if !slices.Contains(places, name) {
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

// kinds are enough of the devices for selectors to show what they do: all, where one of them reads a place.
func (s *summary) kinds(all []*selector) []member {
	for _, name := range places {
		last := string(name[strings.LastIndex(string(name), "/")+1:])
		if slices.ContainsFunc(all, func(s *selector) bool { return strings.Contains(s.program.Expression, last) }) {
			return s.devices
		}
	}
	return s.alike
}
