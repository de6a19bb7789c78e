package gpu

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hopper is a GPU with a few of an H100's profiles.
func hopper() Device {
	place := func(size int, starts ...int) (places []Placement) {
		for _, start := range starts {
			places = append(places, Placement{Start: start, Size: size})
		}
		return places
	}
	return Device{Index: 2, UUID: "GPU-2", MIG: &MIG{Switchable: true, Profiles: []Profile{
		{Name: "7g.80gb", Slices: 7, Max: 1, Placements: place(8, 0)},
		{Name: "3g.40gb", Slices: 3, Max: 2, Placements: place(4, 0, 4)},
		{Name: "1g.10gb+me", Slices: 1, Max: 1, Placements: place(1, 0, 6)},
		{Name: "1g.10gb", Slices: 1, Max: 7, Placements: place(1, 0, 1, 2, 3, 4, 5, 6)},
		{Name: "1g.20gb", Slices: 1, Max: 4, Placements: place(2, 0, 2, 4, 6)},
	}}}
}

func offered(d Device) (names []string) {
	whole, slots := d.Offers()
	for _, s := range slots {
		name := d.SlotName(s)
		if s.UUID != "" {
			name += " " + s.UUID
		}
		names = append(names, name)
	}
	if whole {
		names = append(names, d.Name())
	}
	return names
}

// What fits first should be in the way of the fewest others: small ones first, at the end of the GPU, where the seventh
// slice of cores ends and the eighth of memory is nobody else's.
func TestOffersComeInTheOrderToTryThem(t *testing.T) {
	want := []string{
		"gpu-2-mig-1g-10gb-1", "gpu-2-mig-1g-10gb-2", "gpu-2-mig-1g-10gb-3", "gpu-2-mig-1g-10gb-4", "gpu-2-mig-1g-10gb-5", "gpu-2-mig-1g-10gb-0", "gpu-2-mig-1g-10gb-6",
		"gpu-2-mig-1g-10gb-me-0", "gpu-2-mig-1g-10gb-me-6",
		"gpu-2-mig-1g-20gb-2", "gpu-2-mig-1g-20gb-4", "gpu-2-mig-1g-20gb-6", "gpu-2-mig-1g-20gb-0",
		"gpu-2-mig-3g-40gb-4", "gpu-2-mig-3g-40gb-0",
		"gpu-2-mig-7g-80gb-0",
		"gpu-2",
	}
	if diff := cmp.Diff(want, offered(hopper())); diff != "" {
		t.Errorf("offers (-want +got):\n%s", diff)
	}
}

func TestOffersFollowTheMode(t *testing.T) {
	one := Partition{UUID: "MIG-1", Profile: "3g.40gb", Placement: Placement{Start: 0, Size: 4}}
	tests := []struct {
		enabled, switchable bool
		partitions          []Partition
		want                []string // of slots from 1g.20gb on
	}{
		{want: []string{"gpu-2"}},
		{enabled: true, want: []string{"1g-20gb-0", "1g-20gb-2", "1g-20gb-4", "1g-20gb-6", "3g-40gb-0", "3g-40gb-4", "7g-80gb-0"}},
		{switchable: true, want: []string{"1g-20gb-0", "1g-20gb-2", "1g-20gb-4", "1g-20gb-6", "3g-40gb-0", "3g-40gb-4", "7g-80gb-0", "gpu-2"}},
		{switchable: true, enabled: true, want: []string{"1g-20gb-0", "1g-20gb-2", "1g-20gb-4", "1g-20gb-6", "3g-40gb-0", "3g-40gb-4", "7g-80gb-0", "gpu-2"}},
		{switchable: true, enabled: true, partitions: []Partition{one}, want: []string{"1g-20gb-4", "1g-20gb-6", "3g-40gb-0 MIG-1", "3g-40gb-4"}},
		{enabled: true, partitions: []Partition{one}, want: []string{"1g-20gb-4", "1g-20gb-6", "3g-40gb-0 MIG-1", "3g-40gb-4"}},
		// One that is divided further, or not ready, is in the way and nobody's.
		{enabled: true, partitions: []Partition{{Profile: "3g.40gb", Placement: one.Placement}}, want: []string{"1g-20gb-4", "1g-20gb-6", "3g-40gb-4"}},
		{enabled: true, partitions: []Partition{{UUID: "MIG-2", Profile: "unknown", Placement: Placement{Start: 4, Size: 2}}}, want: []string{"1g-20gb-0", "1g-20gb-2", "1g-20gb-6", "3g-40gb-0"}},
	}
	for _, tc := range tests {
		t.Run(fmt.Sprintf("enabled %t, switchable %t, partitions %v", tc.enabled, tc.switchable, tc.partitions), func(t *testing.T) {
			d := hopper()
			d.MIG.Enabled, d.MIG.Switchable, d.MIG.Partitions = tc.enabled, tc.switchable, tc.partitions
			d.MIG.Profiles = append(d.MIG.Profiles[:2:2], d.MIG.Profiles[4])
			var want []string
			for _, name := range tc.want {
				if name != "gpu-2" {
					name = "gpu-2-mig-" + name
				}
				want = append(want, name)
			}
			if diff := cmp.Diff(want, offered(d)); diff != "" {
				t.Errorf("offers (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSlotNamesAreLabels(t *testing.T) {
	for profile, want := range map[string]string{
		"1g.10gb": "gpu-0-mig-1g-10gb-4", "1g.10gb+me": "gpu-0-mig-1g-10gb-me-4", "1g.24gb-me": "gpu-0-mig-1g-24gb-no-me-4",
		"1g.24gb+me.all": "gpu-0-mig-1g-24gb-me-all-4", "2g.48gb+gfx": "gpu-0-mig-2g-48gb-gfx-4",
	} {
		if got := (Device{}).SlotName(Slot{Profile: Profile{Name: profile}, Placement: Placement{Start: 4, Size: 1}}); got != want {
			t.Errorf("%s: %s, want %s", profile, got, want)
		}
	}
}

func TestPlacementsOverlap(t *testing.T) {
	for _, tc := range []struct {
		a, b Placement
		want bool
	}{
		{Placement{0, 4}, Placement{4, 4}, false},
		{Placement{0, 4}, Placement{3, 1}, true},
		{Placement{2, 2}, Placement{0, 8}, true},
		{Placement{6, 1}, Placement{6, 1}, true},
	} {
		if tc.a.Overlaps(tc.b) != tc.want || tc.b.Overlaps(tc.a) != tc.want {
			t.Errorf("%v and %v: overlap is not %t", tc.a, tc.b, tc.want)
		}
	}
}
