package driver

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/quota"
)

func with(result resourceapi.DeviceRequestAllocationResult, change func(*resourceapi.DeviceRequestAllocationResult)) resourceapi.DeviceRequestAllocationResult {
	change(&result)
	return result
}

// opaque adds parameters for a driver to a claim.
func opaque(claim *resourceapi.ResourceClaim, driver string, source resourceapi.AllocationConfigSource, requests ...string) *resourceapi.ResourceClaim {
	claim.Status.Allocation.Devices.Config = append(claim.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(`{}`)}}},
	})
	return claim
}

func TestGoodClaims(t *testing.T) {
	part := quota.Limits{MemoryBytes: 10 << 30, CorePercent: 30, CorePolicy: v1alpha1.CoreFixed}
	all := quota.Limits{Whole: true, MemoryBytes: h100Bytes, CorePercent: 100}
	foreign := with(whole("nic", "eth0"), func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver, r.Pool = "net.example.com", "node" })
	admin := with(share("gpu", "gpu-0", "s1", "10Gi", "30"), func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = ptr.To(true) })
	tests := map[string]struct {
		claim  *resourceapi.ResourceClaim
		limits []quota.Limits // of the devices, in order
		ids    []string       // CDI names without kind and claim
	}{
		"a share":               {claim: claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "30")), limits: []quota.Limits{part}, ids: []string{"gpu_s1"}},
		"two shares of one GPU": {claim: claimOf("c", share("a", "gpu-0", "s1", "10Gi", "30"), share("b", "gpu-0", "s2", "10Gi", "30")), limits: []quota.Limits{part, part}, ids: []string{"a_s1", "b_s2"}},
		"one request, two GPUs": {claim: claimOf("c", whole("gpu", "gpu-1"), whole("gpu", "gpu-0")), limits: []quota.Limits{all, all}, ids: []string{"gpu_gpu-1", "gpu_gpu-0"}},
		"share beside whole":    {claim: claimOf("c", share("a", "gpu-0", "s1", "10Gi", "30"), whole("b", "gpu-1")), limits: []quota.Limits{part, all}, ids: []string{"a_s1", "b_gpu-1"}},
		"no shareID is whole":   {claim: claimOf("c", with(share("gpu", "gpu-0", "", "10Gi", "30"), func(r *resourceapi.DeviceRequestAllocationResult) { r.ShareID = nil })), limits: []quota.Limits{all}, ids: []string{"gpu_gpu-0"}},
		"no capacity is whole":  {claim: claimOf("c", with(whole("gpu", "gpu-0"), func(r *resourceapi.DeviceRequestAllocationResult) { r.ShareID = ptr.To(types.UID("s1")) })), limits: []quota.Limits{all}, ids: []string{"gpu_s1"}},
		"all of it is whole":    {claim: claimOf("c", share("gpu", "gpu-0", "s1", "81008Mi", "0")), limits: []quota.Limits{all}, ids: []string{"gpu_s1"}},
		"first available":       {claim: claimOf("c", share("gpu/large", "gpu-0", "s1", "10Gi", "30")), limits: []quota.Limits{part}, ids: []string{"gpu.large_s1"}},
		"an admin's":            {claim: claimOf("c", admin), limits: []quota.Limits{{}}, ids: []string{"gpu_s1"}},
		"another driver beside": {claim: claimOf("c", foreign, share("gpu", "gpu-0", "s1", "10Gi", "30")), limits: []quota.Limits{part}, ids: []string{"gpu_s1"}},
		"another's parameters":  {claim: opaque(claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "30")), "net.example.com", resourceapi.AllocationConfigSourceClaim), limits: []quota.Limits{part}, ids: []string{"gpu_s1"}},
		"other request's":       {claim: opaque(claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "30")), "gpu.aliquot.dev", resourceapi.AllocationConfigSourceClaim, "nic"), limits: []quota.Limits{part}, ids: []string{"gpu_s1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			devices := mustPrepare(t, d, tc.claim)
			checkInvariant(t, d)
			var limits []quota.Limits
			for _, a := range recorded(t, d, nil)["c-uid"].Allocations {
				limits = append(limits, a.Limits)
			}
			if diff := cmp.Diff(tc.limits, limits); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			var ids []string
			for _, device := range devices {
				ids = append(ids, device.CDIDeviceIDs...)
			}
			for i := range tc.ids {
				tc.ids[i] = "gpu.aliquot.dev/share=c-uid_" + tc.ids[i]
			}
			if diff := cmp.Diff(tc.ids, ids); diff != "" {
				t.Errorf("CDI devices (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatTheKubeletIsTold(t *testing.T) {
	r := newRig(t, "h100x8")
	got := mustPrepare(t, r.start(t), claimOf("c", share("gpu/large", "gpu-1", "s1", "10Gi", "30"), whole("rest", "gpu-0")))
	attributes := func(index int64, uuid, bus, root string) map[string]resourceapi.DeviceAttribute {
		text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
		version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
		return map[string]resourceapi.DeviceAttribute{
			"type": text("gpu"), "index": {IntValue: &index}, "uuid": text(uuid), "productName": text("NVIDIA H100 80GB HBM3"), "brand": text("Nvidia"),
			"architecture": text("Hopper"), "cudaComputeCapability": version("9.0.0"), "driverVersion": version("580.95.5"), "cudaDriverVersion": version("13.0.0"),
			"resource.kubernetes.io/pciBusID": text(bus), "resource.kubernetes.io/pcieRoot": text(root), "resource.kubernetes.io/numaNode": {IntValue: ptr.To(int64(0))},
		}
	}
	want := []kubeletplugin.Device{
		{
			Requests: []string{"gpu/large"}, PoolName: "node/gpus", DeviceName: "gpu-1", ShareID: ptr.To(types.UID("s1")),
			CDIDeviceIDs: []string{"gpu.aliquot.dev/share=c-uid_gpu.large_s1"},
			Metadata:     &kubeletplugin.DeviceMetadata{Attributes: attributes(1, h100GPU1, "0000:43:00.0", "pci0000:37")},
		},
		{
			Requests: []string{"rest"}, PoolName: "node/gpus", DeviceName: "gpu-0",
			CDIDeviceIDs: []string{"gpu.aliquot.dev/share=c-uid_rest_gpu-0"},
			Metadata:     &kubeletplugin.DeviceMetadata{Attributes: attributes(0, h100GPU0, "0000:1b:00.0", "pci0000:15")},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func TestBadClaimsAreRefusedAndNothingIsWritten(t *testing.T) {
	good := share("gpu", "gpu-0", "s1", "10Gi", "30")
	at := `status.allocation.devices.results[0], request "gpu": `
	withUID := func(uid types.UID) *resourceapi.ResourceClaim {
		claim := claimOf("c", good)
		claim.UID = uid
		return claim
	}
	tests := map[string]struct {
		claim   *resourceapi.ResourceClaim
		wantErr string
	}{
		"no allocation":           {claim: &resourceapi.ResourceClaim{}, wantErr: "claim has no allocation"},
		"another node's pool":     {claim: claimOf("c", with(good, func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "other/gpus" })), wantErr: at + `pool "other/gpus" is not this node's, "node/gpus"`},
		"unknown device":          {claim: claimOf("c", whole("gpu", "gpu-8")), wantErr: at + `device "gpu-8" is not on this node now: its GPU is lost or was never here; delete the pod so that its claim is allocated anew`},
		"the second is unknown":   {claim: claimOf("c", good, whole("b", "gpu-8")), wantErr: `status.allocation.devices.results[1], request "b": device "gpu-8" is not on this node now: its GPU is lost or was never here; delete the pod so that its claim is allocated anew`},
		"parameters of the claim": {claim: opaque(claimOf("c", good), "gpu.aliquot.dev", resourceapi.AllocationConfigSourceClaim), wantErr: at + "devices.config: [claim parameters.apiVersion: Unsupported value: \"\": supported values: \"gpu.aliquot.dev/v1alpha1\", claim parameters.kind: Unsupported value: \"\": supported values: \"ShareConfig\"]"},
		"parameters of the class": {claim: opaque(claimOf("c", good), "gpu.aliquot.dev", resourceapi.AllocationConfigSourceClass, "gpu"), wantErr: at + "devices.config: [class parameters.apiVersion: Unsupported value: \"\": supported values: \"gpu.aliquot.dev/v1alpha1\", class parameters.kind: Unsupported value: \"\": supported values: \"ShareClass\"]"},
		"of the parent request":   {claim: opaque(claimOf("c", share("gpu/a", "gpu-0", "s1", "1Gi", "0")), "gpu.aliquot.dev", resourceapi.AllocationConfigSourceClaim, "gpu"), wantErr: `status.allocation.devices.results[0], request "gpu/a": devices.config: [claim parameters.apiVersion: Unsupported value: "": supported values: "gpu.aliquot.dev/v1alpha1", claim parameters.kind: Unsupported value: "": supported values: "ShareConfig"]`},
		"no memory":               {claim: claimOf("c", share("gpu", "gpu-0", "s1", "0", "30")), wantErr: at + "consumedCapacity[memory] is 0: want a positive number of bytes"},
		"negative memory":         {claim: claimOf("c", share("gpu", "gpu-0", "s1", "-1Gi", "30")), wantErr: at + "consumedCapacity[memory] is -1Gi: want a positive number of bytes"},
		"fractional memory":       {claim: claimOf("c", share("gpu", "gpu-0", "s1", "1500m", "30")), wantErr: at + "consumedCapacity[memory] is 1500m: want a positive number of bytes"},
		"too much memory":         {claim: claimOf("c", share("gpu", "gpu-0", "s1", "81009Mi", "30")), wantErr: at + "consumedCapacity[memory] is 84944093184 bytes: gpu-0 has 84943044608; delete the claim so that it is allocated anew"},
		"negative cores":          {claim: claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "-1")), wantErr: at + "consumedCapacity[cores] is -1: want a whole percentage from 0 to 100"},
		"fractional cores":        {claim: claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "500m")), wantErr: at + "consumedCapacity[cores] is 500m: want a whole percentage from 0 to 100"},
		"too many cores":          {claim: claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "101")), wantErr: at + "consumedCapacity[cores] is 101: want a whole percentage from 0 to 100"},
		"shares beyond the GPU":   {claim: claimOf("c", share("a", "gpu-0", "s1", "50Gi", "0"), share("b", "gpu-0", "s2", "50Gi", "0")), wantErr: "GPU is already given out: GPU " + h100GPU0 + " would give out 107374182400 of 84943044608 bytes and 0 of 100 percent, claims [] hold it"},
		"whole twice":             {claim: claimOf("c", whole("a", "gpu-0"), whole("b", "gpu-0")), wantErr: "GPU is already given out: GPU " + h100GPU0 + " would be whole and shared at once, claims [] hold it"},
		"UID that leads out":      {claim: withUID("../c"), wantErr: `claim UID "../c" is not a name`},
		"no UID":                  {claim: withUID(""), wantErr: `claim UID "" is not a name`},
		"UID with a newline":      {claim: withUID("a\nb"), wantErr: `claim UID "a\nb" is not a name`},
		"shareID that leads out":  {claim: claimOf("c", share("gpu", "gpu-0", "../../s1", "1Gi", "0")), wantErr: `claim c-uid: shareID "../../s1" is not a name`},
		"request that leads out":  {claim: claimOf("c", share("gpu/../..", "gpu-0", "s1", "1Gi", "0")), wantErr: `claim c-uid: request "gpu/../.." is not a name`},
		"the same share twice":    {claim: claimOf("c", share("a", "gpu-0", "s1", "1Gi", "0"), share("b", "gpu-0", "s1", "1Gi", "0")), wantErr: "claim c-uid: two devices are named " + h100GPU0 + ".s1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			if devices, err := prepare(t, d, tc.claim); !matches(err, tc.wantErr) || devices != nil {
				t.Errorf("got devices %v, error %v, want %q", devices, err, tc.wantErr)
			}
			if n := len(d.ledger.Claims()); n > 0 {
				t.Errorf("%d claims are booked", n)
			}
			if written := list(t, r.config.DataDir); !slices.Equal(written, []string{"state.lock"}) {
				t.Errorf("the data directory has %v", written)
			}
			checkInvariant(t, d)
		})
	}
}

func TestClaimOfAnotherDriverIsNoneOfOurs(t *testing.T) {
	d := newRig(t, "h100x8").start(t)
	foreign := with(whole("nic", "eth0"), func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver = "net.example.com" })
	if devices := mustPrepare(t, d, claimOf("c", foreign)); len(devices) > 0 || len(recorded(t, d, nil)) > 0 {
		t.Errorf("got devices %v and records %v", devices, recorded(t, d, nil))
	}
	checkInvariant(t, d)
}
