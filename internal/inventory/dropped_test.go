package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
)

func TestDroppedFieldsNameTheirGate(t *testing.T) {
	static := stored(v1alpha1.TypeMIG, true, 0)
	static.Attributes[v1alpha1.AttributeUUID] = resourceapi.DeviceAttribute{StringValue: ptr.To("MIG-1")}
	for name, c := range map[string]struct {
		devices []resourceapi.Device
		want    []Gate
	}{
		"whole":                 {[]resourceapi.Device{stored(v1alpha1.TypeMIG, true, 1), stored(v1alpha1.TypeGPU, true, 1), static}, nil},
		"a GPU without MIG":     {[]resourceapi.Device{stored(v1alpha1.TypeGPU, true, 0)}, nil},
		"no counters":           {[]resourceapi.Device{stored(v1alpha1.TypeMIG, true, 0)}, []Gate{PartitionableDevices}},
		"no shares":             {[]resourceapi.Device{stored(v1alpha1.TypeGPU, false, 0)}, []Gate{ConsumableCapacity}},
		"neither, on two cards": {[]resourceapi.Device{stored(v1alpha1.TypeMIG, false, 0), stored(v1alpha1.TypeGPU, false, 0)}, []Gate{ConsumableCapacity, PartitionableDevices}},
	} {
		if diff := cmp.Diff(c.want, Dropped([]resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{Devices: c.devices}}})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// stored is a device as an API server stored it.
func stored(kind string, shared bool, counters int) resourceapi.Device {
	d := resourceapi.Device{
		Attributes:       map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{v1alpha1.AttributeType: {StringValue: ptr.To(kind)}},
		ConsumesCounters: make([]resourceapi.DeviceCounterConsumption, counters),
	}
	if shared {
		d.AllowMultipleAllocations = ptr.To(true)
	}
	return d
}
