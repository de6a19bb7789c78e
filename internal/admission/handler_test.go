package admission

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// counted reads a counter as a scrape does.
func counted(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var values []string
			for _, label := range metric.GetLabel() { // in the order of their names
				values = append(values, label.GetValue())
			}
			if family.GetName() == name && slices.Equal(values, labels) {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// oneCase reads one of the manifests.
func oneCase(t *testing.T, file string) manifest {
	t.Helper()
	dir, name, _ := strings.Cut(file, "/")
	for _, m := range manifests(t, dir) {
		if m.name == name {
			return m
		}
	}
	t.Fatalf("no case %s", file)
	return manifest{}
}

// was makes a request an update of what it was before.
func was(r webhook.Request, raw []byte) webhook.Request {
	r.Operation = admissionv1.Update
	r.OldObject = runtime.RawExtension{Raw: raw}
	return r
}

// with sets a field of an object, and does not change what is given.
func with(t *testing.T, raw []byte, value any, path ...string) []byte {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	at := object
	for _, name := range path[:len(path)-1] {
		if at[name] == nil {
			at[name] = map[string]any{}
		}
		at = at[name].(map[string]any)
	}
	at[path[len(path)-1]] = value
	changed, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func TestUpdatesThatLeaveTheSpecAreAllowed(t *testing.T) {
	handlers := Handlers(New(newCluster(t, "h100x8")))
	for file, path := range map[string]string{
		"bad/memory-zero": PathValidateClaim, "bad/both-wrong-template": PathValidateClaim, "good/default-both": PathDefaultClaim,
		"good/default-template": PathDefaultClaim, "bad/class-field.gpu.aliquot.dev": PathValidateClass,
	} {
		m := oneCase(t, file)
		finalized := m.request()
		finalized.Object.Raw = with(t, m.raw, []string{"example.com/wait"}, "metadata", "finalizers")
		for name, request := range map[string]webhook.Request{"unchanged": was(m.request(), m.raw), "finalizers": was(finalized, m.raw)} {
			if r := handlers[path].Handle(t.Context(), request); !r.Allowed || len(r.Warnings) > 0 || len(r.Patch) > 0 {
				t.Errorf("%s, %s: %v", file, name, r.AdmissionResponse)
			}
		}
		for _, request := range []webhook.Request{m.request(), m.request()} {
			request.SubResource = "status"
			if r := handlers[path].Handle(t.Context(), request); !r.Allowed || len(r.Patch) > 0 {
				t.Errorf("%s: its status: %v", file, r.AdmissionResponse)
			}
			request.SubResource, request.Operation, request.Object = "", admissionv1.Delete, runtime.RawExtension{}
			if r := handlers[path].Handle(t.Context(), request); !r.Allowed || len(r.Warnings) > 0 {
				t.Errorf("%s: its end: %v", file, r.AdmissionResponse)
			}
		}
	}
}

func TestUpdatesOfTheSpecAreChecked(t *testing.T) {
	handlers := Handlers(New(newCluster(t, "h100x8")))
	class := oneCase(t, "bad/class-field.gpu.aliquot.dev")
	before := with(t, class.raw, []any{}, "spec", "config")
	if r := handlers[PathValidateClass].Handle(t.Context(), was(class.request(), before)); r.Allowed {
		t.Error("a class may be made wrong")
	}
	repaired := class.request()
	repaired.Object.Raw = before
	if r := handlers[PathValidateClass].Handle(t.Context(), was(repaired, class.raw)); !r.Allowed {
		t.Errorf("a class may not be repaired: %v", r.Result)
	}
	claim := oneCase(t, "bad/memory-zero")
	if r := handlers[PathValidateClaim].Handle(t.Context(), was(claim.request(), oneCase(t, "good/share").raw)); r.Allowed {
		t.Error("a claim may be made wrong")
	}
}

// Whatever fails here, pods are not kept waiting for it: the node checks again.
func TestFailuresAllow(t *testing.T) {
	broken, panicking := newCluster(t), newCluster(t)
	broken.broken, panicking.panicked = true, true
	garbage := oneCase(t, "good/share")
	garbage.raw = []byte(`{"spec": 3}`)
	pod := oneCase(t, "good/share")
	pod.kind = "Pod"
	for name, tc := range map[string]struct {
		cluster *cluster
		m       manifest
		path    string
		want    string
	}{
		"away":            {broken, oneCase(t, "good/share"), PathValidateClaim, "the API server is away"},
		"away, defaults":  {broken, oneCase(t, "good/default-both"), PathDefaultClaim, "the API server is away"},
		"panic":           {panicking, oneCase(t, "bad/memory-zero"), PathValidateClaim, "panic: a bug"},
		"panic, defaults": {panicking, oneCase(t, "good/default-both"), PathDefaultClaim, "panic: a bug"},
		"garbage":         {newCluster(t), garbage, PathValidateClaim, "decode the object"},
		"no claim":        {newCluster(t), pod, PathDefaultClaim, "a Pod is no claim"},
	} {
		t.Run(name, func(t *testing.T) {
			count := func() float64 {
				return counted(t, "aliquot_admission_failures_total", strings.TrimPrefix(tc.path, "/"))
			}
			before := count()
			r := Handlers(New(tc.cluster))[tc.path].Handle(t.Context(), tc.m.request())
			if !r.Allowed || len(r.Patch) > 0 || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], tc.want) {
				t.Errorf("got %v, want a warning of %q", r.AdmissionResponse, tc.want)
			}
			if got := count() - before; got != 1 {
				t.Errorf("counted %v failures", got)
			}
		})
	}
}

// What is found without the devices is refused although those cannot be read.
func TestErrorsAreToldWithoutTheDevices(t *testing.T) {
	c := newCluster(t)
	c.noSlices = true
	handlers := Handlers(New(c))
	r := handlers[PathValidateClaim].Handle(t.Context(), oneCase(t, "bad/memory-zero").request())
	if r.Allowed || !strings.Contains(r.Result.Message, "ask for 1Mi at least") {
		t.Errorf("got %v", r.AdmissionResponse)
	}
	r = handlers[PathValidateClass].Handle(t.Context(), oneCase(t, "good/class-plain.gpu.aliquot.dev").request())
	if !r.Allowed || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "not checked against the GPUs in the cluster") {
		t.Errorf("got %v", r.AdmissionResponse)
	}
}

func TestOutcomesAreCounted(t *testing.T) {
	handlers := Handlers(New(newCluster(t, "h100x8", "t4x4")))
	for file, want := range map[string]string{
		"good/share": "allowed", "good/warn-too-large": "warned", "bad/memory-zero": "denied", "good/default-both": "defaulted",
	} {
		path := PathValidateClaim
		if want == "defaulted" {
			path = PathDefaultClaim
		}
		count := func() float64 {
			return counted(t, "aliquot_admission_requests_total", want, strings.TrimPrefix(path, "/"))
		}
		before := count()
		handlers[path].Handle(t.Context(), oneCase(t, file).request())
		if got := count() - before; got != 1 {
			t.Errorf("%s: %s counted %v times", file, want, got)
		}
	}
}

// defaulted returns the patch of the defaults, and the object with it.
func defaulted(t *testing.T, m manifest) (operations []patch, object []byte) {
	t.Helper()
	r := Handlers(New(newCluster(t)))[PathDefaultClaim].Handle(t.Context(), m.request())
	if !r.Allowed || len(r.Warnings) > 0 {
		t.Fatalf("%s: %v", m.file, r.AdmissionResponse)
	}
	if len(r.Patch) == 0 {
		return nil, m.raw
	}
	applied, err := jsonpatch.DecodePatch(r.Patch)
	if err != nil || r.PatchType == nil || *r.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Fatalf("%s: %v, %v", m.file, err, r.PatchType)
	}
	if object, err = applied.Apply(m.raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Patch, &operations); err != nil {
		t.Fatal(err)
	}
	return operations, object
}

func TestDefaults(t *testing.T) {
	const exactly = "/spec/devices/requests/0/exactly/capacity"
	for file, want := range map[string][]patch{
		"good/share":          nil,
		"good/admin":          nil,
		"good/bounds-met":     nil,
		"good/default-both":   {{"add", exactly, map[string]any{"requests": map[string]any{"memory": "4Gi", "cores": "10"}}}},
		"good/default-memory": {{"add", exactly + "/requests/memory", "4Gi"}},

		"good/default-template": {{"add", "/spec" + exactly + "/requests/cores", "10"}},
		"bad/default-not-over":  nil,
		"good/default-alternatives": {
			{"add", "/spec/devices/requests/0/firstAvailable/0/capacity/requests/cores", "10"},
			{"add", "/spec/devices/requests/0/firstAvailable/1/capacity", map[string]any{"requests": map[string]any{"memory": "4Gi", "cores": "10"}}},
		},
	} {
		if got, _ := defaulted(t, oneCase(t, file)); !cmp.Equal(want, got) {
			t.Errorf("%s (-want +got):\n%s", file, cmp.Diff(want, got))
		}
	}
}

func TestDefaultsKeepWhatThisVersionDoesNotKnow(t *testing.T) {
	m := oneCase(t, "good/default-both")
	m.raw = with(t, m.raw, "kept", "spec", "futureField")
	_, object := defaulted(t, m)
	if !strings.Contains(string(object), `"futureField":"kept"`) {
		t.Errorf("got %s", object)
	}
	for _, empty := range []any{nil, map[string]any{}, map[string]any{"requests": nil}, map[string]any{"requests": map[string]any{}}} {
		m := oneCase(t, "good/default-both")
		var claim resourceapi.ResourceClaim
		if err := json.Unmarshal(m.raw, &claim); err != nil {
			t.Fatal(err)
		}
		exactly := map[string]any{"deviceClassName": "defaults.gpu.aliquot.dev", "capacity": empty}
		m.raw = with(t, m.raw, []any{map[string]any{"name": "gpu", "exactly": exactly}}, "spec", "devices", "requests")
		_, object := defaulted(t, m)
		if err := json.Unmarshal(object, &claim); err != nil {
			t.Fatal(err)
		}
		if got := claim.Spec.Devices.Requests[0].Exactly.Capacity.Requests; len(got) != 2 {
			t.Errorf("capacity was %v and is %v", empty, got)
		}
	}
}

// The scheduler makes such claims for what it has allocated already, the whole GPU.
func TestClaimsOfTheSchedulerGetNoDefaults(t *testing.T) {
	m := oneCase(t, "good/default-both")
	m.raw = with(t, m.raw, "true", "metadata", "annotations", resourceapi.ExtendedResourceClaimAnnotation)
	if got, _ := defaulted(t, m); got != nil {
		t.Errorf("got %v", got)
	}
}

func TestMessagesAreOneLineEach(t *testing.T) {
	name := strings.Repeat("a\nb ", 100)
	claim := resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "share.gpu.aliquot.dev",
		Capacity:        &resourceapi.CapacityRequirements{Requests: amounts(t, name, "1")},
		Selectors:       []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.attributes['gpu.aliquot.dev'][\"x\\ny\"] == \n1"}}},
	}}}
	raw, err := json.Marshal(claim)
	if err != nil {
		t.Fatal(err)
	}
	r := Handlers(New(newCluster(t)))[PathValidateClaim].Handle(t.Context(), manifest{kind: "ResourceClaim", raw: raw}.request())
	got := lines(r.Result.Message)
	if len(got) != 2 || slices.ContainsFunc(got, func(line string) bool { return len(line) > 400 || !strings.HasPrefix(line, "spec.devices") }) {
		t.Errorf("got %q", got)
	}
}
