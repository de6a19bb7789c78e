package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// fleetOf has one node's GPUs on many, each with UUIDs of its own, as a cache would list them.
func fleetOf(t *testing.T, nodes int, hardware string) *cluster {
	t.Helper()
	c := newCluster(t, hardware)
	node := c.slices
	c.slices = nil
	for i := range nodes {
		for j := range node {
			slice := *node[j].DeepCopy()
			slice.Name, slice.ResourceVersion = fmt.Sprintf("node-%d-%d", i, j), strconv.Itoa(i*len(node)+j+1)
			slice.Spec.Pool.Name = fmt.Sprintf("node-%d", i)
			for _, device := range slice.Spec.Devices {
				if device.Attributes["uuid"].StringValue != nil {
					uuid := fmt.Sprintf("GPU-%d-%d", i, j)
					device.Attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: &uuid}
				}
			}
			c.slices = append(c.slices, slice)
		}
	}
	return c
}

// A cache lists in another order each time.
func TestSummaryIsMadeOncePerState(t *testing.T) {
	c := fleetOf(t, 3, "t4x4")
	checker := New(c)
	first := checker.summarize(c.slices)
	c.slices = slices.Clone(c.slices)
	slices.Reverse(c.slices)
	if checker.summarize(c.slices) != first {
		t.Error("made anew for another order of the same slices")
	}
	if place := New(c).summarize(c.slices).kinds[0][0].place; place != first.kinds[0][0].place {
		t.Errorf("the first of the devices is %s or %s, by the order of slices", place, first.kinds[0][0].place)
	}
	c.slices = slices.Clone(c.slices)
	c.slices[1].ResourceVersion = "1000"
	changed := checker.summarize(c.slices)
	if changed == first {
		t.Error("not made anew for a slice that changed")
	}
	if checker.summarize(c.slices[1:]) == changed {
		t.Error("not made anew for a slice that is gone")
	}
}

func TestDevicesThatDifferInPlaces(t *testing.T) {
	c := fleetOf(t, 20, "t4x4")
	c.classes["upper.gpu.aliquot.dev"] = c.classes["share.gpu.aliquot.dev"].DeepCopy()
	c.classes["upper.gpu.aliquot.dev"].Spec.Selectors[0].CEL.Expression = "device.driver == 'gpu.aliquot.dev' && device.attributes['gpu.aliquot.dev'].index >= 2"
	checker := New(c)
	for name, tc := range map[string]struct{ class, expression, want string }{
		"the last GPU of all":          {"share.gpu.aliquot.dev", "device.attributes['gpu.aliquot.dev'].uuid == 'GPU-19-3'", ""},
		"no GPU":                       {"share.gpu.aliquot.dev", "device.attributes['gpu.aliquot.dev'].uuid == 'GPU-20-3'", "matches now"},
		"one of the class":             {"upper.gpu.aliquot.dev", "device.attributes['gpu.aliquot.dev'].index == 3", ""},
		"one that is not of the class": {"upper.gpu.aliquot.dev", "device.attributes['gpu.aliquot.dev'].index == 1", "matches now"},
		"all of the class":             {"upper.gpu.aliquot.dev", "", ""},
	} {
		f, err := checker.Claim(t.Context(), claimOf(t, tc.class, tc.expression, "memory", "1Gi"), field.NewPath("spec"))
		if err != nil || len(f.Errors) > 0 {
			t.Errorf("%s: %v, %v", name, err, f.Errors)
		}
		if got := strings.Join(f.Warnings, "; "); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// A review must not take as long as it takes to look at all devices of a large cluster.
func TestTheLookAtDevicesIsGivenUp(t *testing.T) {
	c := fleetOf(t, 200, "t4x4")
	checker := New(c)
	devices, done := checker.summarize(c.slices).fleet(t.Context())
	defer done()
	spec := claimOf(t, "share.gpu.aliquot.dev", "device.attributes['gpu.aliquot.dev'].uuid == 'GPU-0'", "memory", "1Gi")
	asks, err := checker.oursIn(t.Context(), spec, field.NewPath("spec"))
	if err != nil {
		t.Fatal(err)
	}
	var f Findings
	checker.checkAsk(&f, asks[0], devices.names)
	devices.claim(&f, asks)
	if devices.looks != mostLooks+1 {
		t.Errorf("%d devices were looked at", devices.looks)
	}
	if len(f.Errors)+len(f.Warnings) > 0 {
		t.Errorf("told of devices that were not looked at: %v", f)
	}
}
