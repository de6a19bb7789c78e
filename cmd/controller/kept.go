package main

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kept leaves of an object what is looked at, before the cache has it: a large cluster has a hundred thousand devices,
// and ten thousand claims. Nothing is written where there is nothing to drop, since an object that the cache has comes here
// again (https://github.com/kubernetes/kubernetes/issues/124337).
func kept(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	switch o := object.(type) {
	case *metav1.PartialObjectMetadata: // of claims: which there are
		if o.Labels != nil || o.Annotations != nil || o.OwnerReferences != nil || o.Finalizers != nil || o.GenerateName != "" {
			o.ObjectMeta = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
		}
	case *resourceapi.ResourceSlice:
		if o.Spec.SharedCounters != nil {
			o.Spec.SharedCounters = nil
		}
		for i := range o.Spec.Devices {
			keptOf(&o.Spec.Devices[i])
		}
	}
	return object, nil
}

// counted stands for what a device draws on: whether it draws on anything is all that is asked.
var counted = []resourceapi.DeviceCounterConsumption{{}}

func keptOf(device *resourceapi.Device) {
	if d := device.ConsumesCounters; len(d) > 0 && &d[0] != &counted[0] {
		device.ConsumesCounters = counted
	}
	for name, capacity := range device.Capacity {
		if capacity.RequestPolicy != nil {
			device.Capacity[name] = resourceapi.DeviceCapacity{Value: capacity.Value}
		}
	}
}
