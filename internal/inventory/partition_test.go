package inventory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
)

// partitions makes a claim with one request for each profile.
func partitions(profiles ...string) *resourceapi.ResourceClaim {
	claim := request(make([]string, 2*len(profiles))...)
	for i, profile := range profiles {
		exactly := claim.Spec.Devices.Requests[i].Exactly
		exactly.DeviceClassName, exactly.Capacity = "mig", nil
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes["gpu.aliquot.dev"].profile == %q`, profile),
		}}}
	}
	return claim
}

// names are the devices that a claim got.
func (s *scheduler) names(t *testing.T, claim *resourceapi.ResourceClaim) string {
	t.Helper()
	var names []string
	for _, got := range s.allocate(t, claim) {
		name, _, _ := strings.Cut(got, " ")
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// TestOneGPUOneMode: a GPU that has a share has no partitions, and the reverse, until the last one ends.
func TestOneGPUOneMode(t *testing.T) {
	s := newScheduler(t, fixture(t, "h100x8")[:1])
	first, second := request("10Gi", "10"), request("10Gi", "10")
	for _, claim := range []*resourceapi.ResourceClaim{first, second} {
		if got := s.names(t, claim); got != "gpu-0" {
			t.Fatalf("share: %q", got)
		}
	}
	slice := partitions("1g.10gb")
	for _, claim := range []*resourceapi.ResourceClaim{first, second} {
		if got := s.names(t, slice); got != "" {
			t.Fatalf("a partition of a GPU that is shared: %q", got)
		}
		s.free(claim)
	}
	if got := s.names(t, slice); got != "gpu-0-mig-1g-10gb-6" {
		t.Fatalf("partition once the shares are gone: %q", got)
	}
	if got := s.names(t, request("1Gi", "0")); got != "" {
		t.Errorf("a share of a GPU that is partitioned: %q", got)
	}
	s.free(slice)
	if got := s.names(t, request("", "")); got != "gpu-0" {
		t.Errorf("the whole GPU once the partition is gone: %q", got)
	}
}

func TestPartitionsFillAGPU(t *testing.T) {
	s := newScheduler(t, fixture(t, "h100x8")[:2])
	taken := map[string]bool{}
	for i := range 8 {
		got := s.names(t, partitions("1g.10gb"))
		taken[got] = true
		if want := fmt.Sprintf("gpu-%d-mig-1g-10gb-", i/7); !strings.HasPrefix(got, want) {
			t.Errorf("partition %d: %q, want %s*", i, got, want)
		}
	}
	if len(taken) != 8 {
		t.Errorf("eight partitions lie at %d places", len(taken))
	}
}

func TestPartitionsFitWhereHardwareLetsThem(t *testing.T) {
	tests := map[string]struct {
		profiles []string
		fits     bool
	}{
		"a mix":                         {[]string{"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"}, true},
		"small ones first":              {[]string{"1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"}, true},
		"4g and 3g":                     {[]string{"4g.40gb", "3g.40gb"}, true},
		"two 4g":                        {[]string{"4g.40gb", "4g.40gb"}, false},
		"three 3g":                      {[]string{"3g.40gb", "3g.40gb", "3g.40gb"}, false},
		"four 1g.20gb":                  {[]string{"1g.20gb", "1g.20gb", "1g.20gb", "1g.20gb"}, true},
		"3g, and 1g up to the last":     {[]string{"3g.40gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"}, true},
		"3g, and one 1g more":           {[]string{"3g.40gb", "3g.40gb", "1g.10gb"}, false},
		"media extensions once":         {[]string{"1g.10gb+me", "1g.10gb"}, true},
		"media extensions twice":        {[]string{"1g.10gb+me", "1g.10gb+me"}, false},
		"all, and nothing beside":       {[]string{"7g.80gb", "1g.10gb"}, false},
		"a profile that it has not got": {[]string{"1g.5gb"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, fixture(t, "h100x8")[:1])
			if got := s.names(t, partitions(tc.profiles...)); (got != "") != tc.fits {
				t.Errorf("%v on one GPU: %q, want it to fit: %t", tc.profiles, got, tc.fits)
			}
		})
	}
}

// TestPartitionsAreShared: a partition is given out like a GPU, and made for its first share.
func TestPartitionsAreShared(t *testing.T) {
	s := newScheduler(t, fixture(t, "h100x8")[:1])
	for i, amounts := range [][2]string{{"4Gi", "60"}, {"4Gi", "40"}, {"", ""}} {
		claim := partitions("1g.10gb")
		exactly := claim.Spec.Devices.Requests[0].Exactly
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		if amounts[0] != "" {
			exactly.Capacity.Requests[v1alpha1.CapacityMemory] = resource.MustParse(amounts[0])
			exactly.Capacity.Requests[v1alpha1.CapacityCores] = resource.MustParse(amounts[1])
		}
		want := []string{"gpu-0-mig-1g-10gb-6 4Gi 60", "gpu-0-mig-1g-10gb-6 4Gi 40", "gpu-0-mig-1g-10gb-4 9984Mi 0"}[i]
		if got := s.allocate(t, claim); !slices.Equal(got, []string{want}) {
			t.Errorf("claim %d: %v, want %s", i, got, want)
		}
	}
}

// TestPartitionsOfOthers: what somebody made is given out as it is, and nothing that is in its way.
func TestPartitionsOfOthers(t *testing.T) {
	devices := fixture(t, "h100x8")[:1]
	me, ok := devices[0].MIG.Profile("1g.10gb+me")
	if !ok {
		t.Fatal("the fixture has no 1g.10gb+me")
	}
	devices[0].MIG.Enabled = true
	devices[0].MIG.Partitions = []gpu.Partition{{UUID: "MIG-1", Profile: me.Name, Placement: gpu.Placement{Start: 0, Size: 1}}}
	s := newScheduler(t, devices)
	for _, claim := range []*resourceapi.ResourceClaim{request("1Gi", "0"), partitions("4g.40gb"), partitions("7g.80gb"), partitions("1g.10gb+me", "1g.10gb+me")} {
		if got := s.names(t, claim); got != "" {
			t.Errorf("given out over it, or with its engine: %q", got)
		}
	}
	if got := s.names(t, partitions("1g.10gb+me")); got != "gpu-0-mig-1g-10gb-me-0" {
		t.Errorf("itself: %q", got)
	}
	if got := s.names(t, partitions("3g.40gb")); got != "gpu-0-mig-3g-40gb-4" {
		t.Errorf("beside it: %q", got)
	}
	for _, d := range Devices(devices[0]) {
		if (d.Attributes[v1alpha1.AttributeUUID].StringValue != nil) != (d.Name == "gpu-0-mig-1g-10gb-me-0") {
			t.Errorf("device %s has UUID %v", d.Name, d.Attributes[v1alpha1.AttributeUUID].StringValue)
		}
	}
}

// TestCountersWithinTheAPI: the API server's own limits, which are not in the validation that its API module has.
func TestCountersWithinTheAPI(t *testing.T) {
	for _, name := range []string{"a30x2", "a100-80x2", "h100x8", "h200x2", "b200x2", "gh200x1", "rtxpro6000x2"} {
		devices := fixture(t, name)
		for i := range devices {
			devices[i].MIG.Enabled = true // so that Ampere offers them too
		}
		sets := map[string]resourceapi.CounterSet{}
		pool := Resources("node", devices, nil).Pools["node/gpus"]
		for _, slice := range pool.Slices {
			if len(slice.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures || len(slice.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets ||
				len(slice.Devices) > 0 && len(slice.SharedCounters) > 0 {
				t.Errorf("%s: a slice has %d devices and %d counter sets", name, len(slice.Devices), len(slice.SharedCounters))
			}
			for _, set := range slice.SharedCounters {
				sets[set.Name] = set
			}
		}
		for _, slice := range pool.Slices {
			for _, device := range slice.Devices {
				checkCounters(t, name, device, sets)
			}
		}
	}
}

func checkCounters(t *testing.T, name string, device resourceapi.Device, sets map[string]resourceapi.CounterSet) {
	t.Helper()
	if len(device.Attributes)+len(device.Capacity) > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%s: %s has %d attributes and %d capacities", name, device.Name, len(device.Attributes), len(device.Capacity))
	}
	for _, consumed := range device.ConsumesCounters {
		set, ok := sets[consumed.CounterSet]
		if !ok || len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
			t.Errorf("%s: %s consumes of set %q, which has %d counters", name, device.Name, consumed.CounterSet, len(set.Counters))
		}
		for counter, amount := range consumed.Counters {
			if total, ok := set.Counters[counter]; !ok || amount.Value.Cmp(total.Value) > 0 {
				t.Errorf("%s: %s takes %s of counter %s, of which there is %s", name, device.Name, &amount.Value, counter, &total.Value)
			}
		}
	}
}
