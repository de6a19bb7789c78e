package main

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
)

// watched is a cache of slices.
type watched struct {
	cache.Cache
	informer *controllertest.FakeInformer
	slices   []resourceapi.ResourceSlice
	lists    int
}

func (w *watched) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return w.informer, nil
}

func (w *watched) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	w.lists++
	list.(*resourceapi.ResourceSliceList).Items = w.slices
	return nil
}

func TestSlicesAreListedOncePerChange(t *testing.T) {
	w := &watched{informer: controllertest.NewFakeInformer()}
	c, err := newCluster(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	one, two := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "two"}}
	for i, change := range []func(){
		func() {},
		func() { w.slices = []resourceapi.ResourceSlice{one}; w.informer.Add(&one) },
		func() { w.slices = []resourceapi.ResourceSlice{two}; w.informer.Update(&one, &two) },
		func() { w.slices = nil; w.informer.Delete(&two) },
	} {
		change()
		for range 3 {
			got, err := c.Slices(t.Context())
			if diff := cmp.Diff(w.slices, got); diff != "" || err != nil {
				t.Errorf("after change %d: %v %s", i, err, diff)
			}
		}
		if w.lists != i+1 {
			t.Errorf("after change %d: listed %d times", i, w.lists)
		}
	}
}

func TestOnlyWhatIsLookedAtIsKept(t *testing.T) {
	claim := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team-a", Name: "claim", UID: "1", ResourceVersion: "2", Labels: map[string]string{"app": "x"}, Finalizers: []string{"x"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
	memory := resource.MustParse("1Gi")
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		SharedCounters: []resourceapi.CounterSet{{Name: "gpu-0"}},
		Devices: []resourceapi.Device{{
			Name: "gpu-0", AllowMultipleAllocations: ptr.To(true),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("gpu")}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {Value: memory, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &memory}},
			},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu-0"}},
		}, {Name: "gpu-1"}},
	}}
	for range 2 { // a cache may ask twice
		for _, object := range []any{claim, slice} {
			if _, err := kept(object); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(metav1.ObjectMeta{Namespace: "team-a", Name: "claim", UID: "1", ResourceVersion: "2"}, claim.ObjectMeta); diff != "" {
		t.Error(diff)
	}
	want := resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{
		Name: "gpu-0", AllowMultipleAllocations: ptr.To(true),
		Attributes:       map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("gpu")}},
		Capacity:         map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: memory}},
		ConsumesCounters: []resourceapi.DeviceCounterConsumption{{}}, // that it draws on some
	}, {Name: "gpu-1"}}}
	if diff := cmp.Diff(want, slice.Spec); diff != "" {
		t.Error(diff)
	}
}
