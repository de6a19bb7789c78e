package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestWhatExpressionsRead(t *testing.T) {
	const a, c = "device.attributes['gpu.aliquot.dev']", "device.capacity['gpu.aliquot.dev']"
	for expression, want := range map[string]string{
		a + ".type == 'gpu'":                                                               "type",
		a + "['type'] == 'gpu'":                                                            "type",
		a + ".?type.orValue('') == 'gpu'":                                                  "type",
		a + "[?'type'].orValue('') == 'gpu'":                                               "type",
		"has(" + a + ".type) && 'uuid' in " + a:                                            "type uuid",
		`device.attributes["gpu.aliquot.dev"].type == "gpu"`:                               "type",
		"device.attributes[?'gpu.aliquot.dev'].?x.hasValue()":                              "x",
		c + ".memory.isGreaterThan(quantity('1Gi'))":                                       "+memory",
		"cel.bind(a, " + a + ", a.x == 1 && a.?y.orValue(1) > 0)":                          "x y",
		"cel.bind(a, device.attributes, a['gpu.aliquot.dev'].x == 1)":                      "x",
		"cel.bind(a, 1, cel.bind(b, " + c + ", b.x.isGreaterThan(quantity('1')) && a==1))": "+x",
		"[1, 2].exists(i, i == " + a + ".index)":                                           "index",
		"{'k': " + a + ".index}['k'] == 1":                                                 "index",
		"(device.driver == 'x' ? " + a + ".x : " + a + ".y) == 1":                          "x y",
		"device.attributes['nic.example.com'].x == 1":                                      "",
		"device.attributes['gpu.' + 'aliquot.dev'].x == 1":                                 "",
		"device.driver == 'gpu.aliquot.dev' && device.allowMultipleAllocations":            "",
	} {
		s := compile(expression, false)
		if s.problem != "" {
			t.Errorf("%s: %s", expression, s.problem)
		}
		var got []string
		for _, r := range s.names {
			name := r.name
			if r.capacity {
				name = "+" + name
			}
			if !slices.Contains(got, name) {
				got = append(got, name)
			}
		}
		if want != strings.Join(got, " ") {
			t.Errorf("%s reads %q, want %q", expression, got, want)
		}
	}
	if !compile("device.allowMultipleAllocations", false).shared || compile("device.driver == 'x'", false).shared {
		t.Error("who asks for shared devices is not seen")
	}
}

func TestMeant(t *testing.T) {
	known := namesOf(nil)
	for name, want := range map[string]string{
		"memroy": `"memory"`, "core": `"cores"`, "cors": `"cores"`, "MEMORY": `"memory"`, "gpu.aliquot.dev/memroy": `"memory"`, "mem": `"memory"`, "gpuMemory": `"memory"`,
		"copy-engines": `"copyEngines"`, "multiprocessor": `"multiprocessors"`, "": "there are", "x": "there are", "bandwidth": "there are",
	} {
		if got := known.capacityProblem(resourceapi.QualifiedName(name)); !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	for name := range known.capacities {
		if problem := known.capacityProblem(resourceapi.QualifiedName(name)); problem != "" {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// Nodes may be of a later version, and publish more.
func TestNamesThatNodesPublishAreKnown(t *testing.T) {
	c := newCluster(t, "h100x8")
	device := c.slices[0].Spec.Devices[0].DeepCopy()
	device.Attributes["nvlink"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(1))}
	device.Capacity["gpu.aliquot.dev/bandwidth"] = resourceapi.DeviceCapacity{Value: amounts(t, "x", "10")["x"]}
	spec := claimOf(t, "share.gpu.aliquot.dev", "device.attributes['gpu.aliquot.dev'].?nvlink.orValue(0) > 0 && 'bandwidth' in device.capacity['gpu.aliquot.dev']")
	check := func() Findings {
		f, err := New(c).Claim(t.Context(), spec, field.NewPath("spec"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := check(); len(f.Errors) != 2 {
		t.Errorf("got %v", f.Errors)
	}
	c.slices[0].Spec.Devices = []resourceapi.Device{*device}
	if f := check(); len(f.Errors) > 0 {
		t.Errorf("got %v", f.Errors)
	}
}

// A claim may name what it derives as it likes. The feature is off by default, so no manifest shows it.
func TestDerivedAttributes(t *testing.T) {
	checker := New(newCluster(t, "t4x4"))
	spec := claimOf(t, "share.gpu.aliquot.dev", "", "memory", "1Gi")
	spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.aliquot.dev/half"))}}
	if f, err := checker.Claim(t.Context(), spec, field.NewPath("spec")); err != nil || len(f.Errors) != 1 {
		t.Errorf("an attribute that nobody derives: %v, %v", f, err)
	}
	derived := &spec.Devices.Requests[0].Exactly.DerivedAttributes
	*derived = []resourceapi.DeviceDerivedAttribute{{Name: "gpu.aliquot.dev/half", Expression: "device.attributes['gpu.aliquot.dev'].index / 2"}}
	if f, err := checker.Claim(t.Context(), spec, field.NewPath("spec")); err != nil || len(f.Errors) > 0 {
		t.Errorf("derived: %v, %v", f, err)
	}
	(*derived)[0].Expression = "device.attributes['gpu.aliquot.dev'].idx / 2"
	if f, err := checker.Claim(t.Context(), spec, field.NewPath("spec")); err != nil || len(f.Errors) != 1 {
		t.Errorf("derived from what nobody publishes: %v, %v", f, err)
	}
}

func claimOf(t testing.TB, class, expression string, pairs ...string) *resourceapi.ResourceClaimSpec {
	t.Helper()
	request := resourceapi.ExactDeviceRequest{DeviceClassName: class, Capacity: &resourceapi.CapacityRequirements{Requests: amounts(t, pairs...)}}
	if expression != "" {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
	return &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}}}}
}

func TestWarningsOfTheCluster(t *testing.T) {
	const one = "device.attributes['gpu.aliquot.dev'].?uuid.orValue('') == '%s'"
	for name, tc := range map[string]struct {
		hardware []string
		spec     *resourceapi.ResourceClaimSpec
		want     string
	}{
		"no GPU at all":        {nil, claimOf(t, "share.gpu.aliquot.dev", "", "memory", "1Gi"), "no node publishes GPUs now: pods with this claim wait until one does"},
		"fits":                 {[]string{"t4x4"}, claimOf(t, "share.gpu.aliquot.dev", "", "memory", "14911Mi"), ""},
		"a step too much":      {[]string{"t4x4"}, claimOf(t, "share.gpu.aliquot.dev", "", "memory", "14911.1Mi"), "no GPU in the cluster has more than 14.5Gi for this class"},
		"one GPU, by its UUID": {[]string{"t4x4"}, claimOf(t, "share.gpu.aliquot.dev", fmt.Sprintf(one, "GPU-7e4a1c52-0b5d-4f6e-9a31-5d2c81f0e403")), ""},
		"no GPU of that UUID":  {[]string{"t4x4"}, claimOf(t, "share.gpu.aliquot.dev", fmt.Sprintf(one, "GPU-0")), "matches now"},
		"of another node":      {[]string{"t4x4", "a30x2"}, claimOf(t, "share.gpu.aliquot.dev", "", "memory", "20Gi"), ""},
		"no GPU of that kind":  {[]string{"a30x2"}, claimOf(t, "turing.gpu.aliquot.dev", "", "memory", "1Gi"), `no GPU in the cluster matches device class "turing.gpu.aliquot.dev" now`},
	} {
		f, err := New(newCluster(t, tc.hardware...)).Claim(t.Context(), tc.spec, field.NewPath("spec"))
		if err != nil || len(f.Errors) > 0 {
			t.Errorf("%s: %v, %v", name, err, f.Errors)
		}
		if got := strings.Join(f.Warnings, "; "); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestNoDeviceHasAllTogether(t *testing.T) {
	c := newCluster(t, "t4x4")
	small, large := c.slices[0].Spec.Devices[0].DeepCopy(), c.slices[0].Spec.Devices[0].DeepCopy()
	small.Capacity["decoders"] = resourceapi.DeviceCapacity{Value: amounts(t, "x", "4")["x"]}
	small.Capacity["memory"] = resourceapi.DeviceCapacity{Value: amounts(t, "x", "1Gi")["x"]}
	large.Capacity["decoders"] = resourceapi.DeviceCapacity{Value: amounts(t, "x", "1")["x"]}
	c.slices[0].Spec.Devices, c.slices = []resourceapi.Device{*small, *large}, c.slices[:1]
	f, err := New(c).Claim(t.Context(), claimOf(t, "share.gpu.aliquot.dev", "", "memory", "2Gi", "decoders", "4"), field.NewPath("spec"))
	if diff := cmp.Diff([]string{"spec.devices.requests[0].exactly.capacity.requests: no GPU in the cluster has all of this together for this class"}, f.Warnings); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

// A class that nodes refuse is its author's to mend; who makes a claim is told.
func TestClassWithBadParameters(t *testing.T) {
	c := newCluster(t, "t4x4")
	c.classes["bounded.gpu.aliquot.dev"].Spec.Config[0].Opaque.Parameters.Raw = []byte(`{"kind": "ShareClass"}`)
	f, err := New(c).Claim(t.Context(), claimOf(t, "bounded.gpu.aliquot.dev", "", "memory", "1Gi"), field.NewPath("spec"))
	if err != nil || len(f.Errors) > 0 || len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0], `nodes refuse what device class "bounded.gpu.aliquot.dev" says: spec.config[0].opaque.parameters.apiVersion`) {
		t.Errorf("got %v, %v", f, err)
	}
}

// A cluster of a thousand nodes is looked at in the time that a webhook has.
func BenchmarkLargeCluster(b *testing.B) {
	c := newCluster(b, "h100x8")
	node := c.slices
	for range 999 {
		c.slices = append(c.slices, node...)
	}
	for i := range c.slices {
		c.slices[i].ResourceVersion = strconv.Itoa(i + 1)
	}
	checker := New(c)
	spec := claimOf(b, "share.gpu.aliquot.dev", "", "memory", "1Gi")
	for name, again := range map[string]bool{"the same": true, "changed": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if !again {
					c.slices = slices.Clone(c.slices)
					c.slices[0].ResourceVersion += "0"
				}
				f, err := checker.Claim(b.Context(), spec, field.NewPath("spec"))
				if err != nil || len(f.Errors)+len(f.Warnings) > 0 {
					b.Fatal(f, err)
				}
			}
		})
	}
}
