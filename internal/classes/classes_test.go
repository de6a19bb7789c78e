package classes

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/admission"
	"aliquot.dev/aliquot/internal/inventory"
)

// cluster has slices, and no classes that claims could name.
type cluster []resourceapi.ResourceSlice

func (cluster) Class(context.Context, string) (*resourceapi.DeviceClass, error) { return nil, nil }

func (c cluster) Slices(context.Context) ([]resourceapi.ResourceSlice, error) { return c, nil }

func class(name, parameters string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{{
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver:     v1alpha1.DriverName,
				Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "ShareClass"` + parameters + `}`)},
			}},
		}}},
	}
}

type world struct {
	t        *testing.T
	client   client.Client
	recorder *events.FakeRecorder
	*Reconciler
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	scheme := runtime.NewScheme()
	if err := resourceapi.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), recorder: events.NewFakeRecorder(20)}
	w.Reconciler = New(w.client, admission.New(cluster(nil)), w.recorder, func(class string) bool { return strings.HasSuffix(class, "aliquot.dev") })
	classErrors.Reset()
	return w
}

// reconciled returns the Events that checking a class makes.
func (w *world) reconciled(name string) []string {
	w.t.Helper()
	if _, err := w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}); err != nil {
		w.t.Fatal(err)
	}
	return recorded(w.recorder)
}

func recorded(recorder *events.FakeRecorder) []string {
	var all []string
	for len(recorder.Events) > 0 {
		all = append(all, <-recorder.Events)
	}
	return all
}

func TestWhatIsWrongWithAClassIsToldOnce(t *testing.T) {
	w := newWorld(t, class("small.gpu.aliquot.dev", `, "memory": {"maximum": "4Gi"}, "corePolicy": "fixed"`))
	got := w.reconciled("small.gpu.aliquot.dev")
	if len(got) != 1 || !strings.HasPrefix(got[0], "Warning InvalidClass spec.config[0].opaque.parameters") || !strings.Contains(got[0], `unknown field "memory.maximum"`) {
		t.Errorf("Events are %q", got)
	}
	if errors := testutil.ToFloat64(classErrors.WithLabelValues("small.gpu.aliquot.dev")); errors != 1 {
		t.Errorf("the metric is %v", errors)
	}
	if again := w.reconciled("small.gpu.aliquot.dev"); len(again) > 0 {
		t.Errorf("the same is told again: %q", again)
	}
}

func TestAClassThatWasMendedIsToldOf(t *testing.T) {
	w := newWorld(t, class("small.gpu.aliquot.dev", `, "cores": {"max": 101}`))
	w.reconciled("small.gpu.aliquot.dev")
	mended := class("small.gpu.aliquot.dev", `, "cores": {"max": 10}`)
	mended.ResourceVersion = "999"
	if err := w.client.Update(t.Context(), mended); err != nil {
		t.Fatal(err)
	}
	want := []string{"Normal ValidClass nothing is wrong with this class any more"}
	if diff := cmp.Diff(want, w.reconciled("small.gpu.aliquot.dev")); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if errors := testutil.ToFloat64(classErrors.WithLabelValues("small.gpu.aliquot.dev")); errors != 0 {
		t.Errorf("the metric is %v", errors)
	}
}

func TestAClassThatIsGoneOrNotOursHasNoMetric(t *testing.T) {
	broken := class("small.gpu.aliquot.dev", `, "cores": {"max": 101}`)
	foreign := class("theirs.example.com", `, "cores": {"max": 101}`)
	foreign.Spec.Config[0].Opaque.Driver = "gpu.example.com"
	w := newWorld(t, broken, foreign)
	w.reconciled("small.gpu.aliquot.dev")
	if err := w.client.Delete(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	if got := append(w.reconciled("small.gpu.aliquot.dev"), w.reconciled("theirs.example.com")...); len(got) > 0 {
		t.Errorf("Events are %q", got)
	}
	if n := testutil.CollectAndCount(classErrors); n != 0 {
		t.Errorf("%d classes have a metric", n)
	}
}

func TestAClassWhoseClaimsTheWebhooksDoNotSeeIsToldOf(t *testing.T) {
	w := newWorld(t, class("gold.example.com", ""))
	got := w.reconciled("gold.example.com")
	if len(got) != 1 || !strings.HasPrefix(got[0], "Warning ClaimsUnchecked ") {
		t.Errorf("Events are %q", got)
	}
}

func slice(node string, devices ...resourceapi.Device) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{NodeName: &node, Devices: devices}}
}

func device(kind string, shared bool, counters int) resourceapi.Device {
	d := resourceapi.Device{
		Attributes:       map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{v1alpha1.AttributeType: {StringValue: ptr.To(kind)}},
		ConsumesCounters: make([]resourceapi.DeviceCounterConsumption, counters),
	}
	if shared {
		d.AllowMultipleAllocations = ptr.To(true)
	}
	return d
}

func TestDroppedFieldsAreToldOnTheNodeOnce(t *testing.T) {
	dropped.Reset()
	recorder := events.NewFakeRecorder(10)
	s := NewSlices(cluster{slice("good", device(v1alpha1.TypeGPU, true, 0)), slice("bad", device(v1alpha1.TypeGPU, false, 0))}, recorder)
	for _, node := range []string{"good", "bad", "bad"} {
		if _, err := s.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}); err != nil {
			t.Fatal(err)
		}
	}
	got := recorded(recorder)
	if len(got) != 1 || !strings.Contains(got[0], "Turn on the feature gate DRAConsumableCapacity") {
		t.Errorf("Events are %q", got)
	}
	if off := testutil.ToFloat64(dropped.WithLabelValues("bad", inventory.ConsumableCapacity.Name)); off != 1 || testutil.CollectAndCount(dropped) != 1 {
		t.Errorf("the metric is %v", off)
	}
	s.cluster = cluster{slice("bad", device(v1alpha1.TypeGPU, true, 0))}
	if _, err := s.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "bad"}}); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(dropped); n != 0 {
		t.Errorf("%d nodes have a metric", n)
	}
}
