package sharequota

import (
	"math"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

const (
	mi = int64(1) << 20
	gi = int64(1) << 30

	largest = 80 * gi
)

func ours(class string) bool { return strings.HasSuffix(class, "gpu.aliquot.dev") }

func TestClaim(t *testing.T) {
	tests := []struct {
		name  string
		claim string
		want  Amount
	}{
		{name: "a share", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: share.gpu.aliquot.dev, count: 1, capacity: {requests: {memory: 10Gi, cores: 30}}}}]}}",
			want: Amount{10 * gi, 30, 1}},
		{name: "several of a kind", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: share.gpu.aliquot.dev, count: 3, capacity: {requests: {memory: 10Gi, cores: 30}}}}]}}",
			want: Amount{30 * gi, 90, 3}},
		{name: "several requests", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, capacity: {requests: {memory: 1Gi}}}}, {name: b, exactly: {deviceClassName: gpu.aliquot.dev, capacity: {requests: {memory: 2Gi, cores: 5}}}}]}}",
			want: Amount{3 * gi, 5, 2}},
		{name: "rounded up to the step", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, capacity: {requests: {memory: 1048577, cores: 1500m}}}}]}}",
			want: Amount{2 * mi, 2, 1}},
		{name: "the least", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, capacity: {requests: {memory: 0}}}}]}}",
			want: Amount{mi, 0, 1}},
		{name: "negative makes no room", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, count: -3, capacity: {requests: {memory: -10Gi, cores: -50}}}}]}}",
			want: Amount{mi, 0, 1}},
		{name: "too large makes no room", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, count: 32, capacity: {requests: {memory: 7Ei, cores: 1e18}}}}, {name: b, exactly: {deviceClassName: gpu.aliquot.dev, capacity: {requests: {memory: 100Ei}}}}]}}",
			want: Amount{math.MaxInt64, math.MaxInt64, 33}},
		{name: "no memory is a whole device", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, count: 2}}]}}",
			want: Amount{160 * gi, 0, 2}},
		{name: "no memory but cores", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, capacity: {requests: {cores: 20}}}}]}}",
			want: Amount{80 * gi, 20, 1}},
		{name: "the most of alternatives", claim: "spec: {devices: {requests: [{name: a, firstAvailable: [{name: x, deviceClassName: mig.gpu.aliquot.dev, capacity: {requests: {memory: 20Gi, cores: 10}}}, {name: y, deviceClassName: share.gpu.aliquot.dev, count: 2, capacity: {requests: {memory: 5Gi, cores: 50}}}, {name: z, deviceClassName: other.example.com}]}]}}",
			want: Amount{20 * gi, 100, 2}},
		{name: "all that match, as far as is known", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, allocationMode: All, capacity: {requests: {memory: 1Gi}}}}]}}",
			want: Amount{gi, 0, 1}},
		{name: "an administrator looks", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, adminAccess: true}}]}}"},
		{name: "another driver's", claim: "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: nic.example.com, count: 3}}]}}"},
		{name: "no devices", claim: "spec: {}"},
		{name: "what was allocated, not what was asked", claim: `
spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev, count: 9}}]}}
status: {allocation: {devices: {results: [
  {driver: gpu.aliquot.dev, request: a, consumedCapacity: {memory: 10Gi, cores: 30}},
  {driver: gpu.aliquot.dev, request: a, consumedCapacity: {gpu.aliquot.dev/memory: 5Gi, gpu.aliquot.dev/cores: 10}},
  {driver: gpu.aliquot.dev, request: a, adminAccess: true, consumedCapacity: {memory: 10Gi}},
  {driver: nic.example.com, request: a, consumedCapacity: {memory: 10Gi}}]}}}`,
			want: Amount{15 * gi, 40, 2}},
		{name: "allocated without amounts", claim: "status: {allocation: {devices: {results: [{driver: gpu.aliquot.dev, request: a}]}}}",
			want: Amount{80 * gi, 100, 1}},
		{name: "allocated nothing of ours", claim: "{spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.aliquot.dev}}]}}, status: {allocation: {devices: {results: []}}}}"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var claim resourceapi.ResourceClaim
			if err := yaml.UnmarshalStrict([]byte(tc.claim), &claim); err != nil {
				t.Fatal(err)
			}
			if got := Claim(&claim, largest, ours); got != tc.want {
				t.Errorf("counts for %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestLargest(t *testing.T) {
	slice := func(driver string, memory ...string) resourceapi.ResourceSlice {
		s := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver}}
		for _, m := range memory {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(m)}}})
		}
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{})
		return s
	}
	if got := Largest([]resourceapi.ResourceSlice{slice("gpu.aliquot.dev", "10Gi", "80Gi"), slice("gpu.aliquot.dev", "40Gi"), slice("gpu.nvidia.com", "141Gi")}); got != 80*gi {
		t.Errorf("the largest device has %d bytes, want 80Gi", got)
	}
	if got := Largest(nil); got != 0 {
		t.Errorf("without devices the largest has %d bytes", got)
	}
}
