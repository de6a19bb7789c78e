package driver

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// withParameters adds parameters of ours to a claim: of a class if they are a ShareClass.
func withParameters(claim *resourceapi.ResourceClaim, all ...string) *resourceapi.ResourceClaim {
	for _, fields := range all {
		source := resourceapi.AllocationConfigSourceClaim
		if strings.Contains(fields, `"ShareClass"`) {
			source = resourceapi.AllocationConfigSourceClass
		}
		raw := fmt.Sprintf(`{"apiVersion": "gpu.aliquot.dev/v1alpha1", %s}`, fields)
		claim.Status.Allocation.Devices.Config = append(claim.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: source,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(raw)},
			}},
		})
	}
	return claim
}

func TestParametersOfClassAndClaim(t *testing.T) {
	const burst, none = `"kind": "ShareConfig", "corePolicy": "Burst"`, `"kind": "ShareConfig", "enforcement": "None"`
	tests := map[string]struct {
		parameters []string
		want       string // policy, and whether it is limited
		wantErr    string
	}{
		"none":                      {want: "Fixed true"},
		"burst by the claim":        {parameters: []string{burst}, want: "Burst true"},
		"burst by the class":        {parameters: []string{`"kind": "ShareClass", "corePolicy": "Burst"`}, want: "Burst true"},
		"the claim wins":            {parameters: []string{`"kind": "ShareClass", "corePolicy": "Burst"`, `"kind": "ShareConfig", "corePolicy": "Fixed"`}, want: "Fixed true"},
		"the later claim wins":      {parameters: []string{burst, `"kind": "ShareConfig", "corePolicy": "Fixed"`}, want: "Fixed true"},
		"burst, not allowed":        {parameters: []string{`"kind": "ShareClass", "claimsMaySet": []`, burst}, wantErr: "claim parameters.corePolicy: Forbidden: the device class does not let claims set it"},
		"no enforcement, class":     {parameters: []string{`"kind": "ShareClass", "enforcement": "None"`}, want: "Fixed false"},
		"no enforcement, claim":     {parameters: []string{none}, wantErr: "claim parameters.enforcement: Forbidden"},
		"no enforcement, allowed":   {parameters: []string{`"kind": "ShareClass", "claimsMaySet": ["enforcement"]`, none}, want: "Fixed false"},
		"within bounds":             {parameters: []string{`"kind": "ShareClass", "memory": {"min": "10Gi", "max": "10Gi"}, "cores": {"min": 30, "max": 30}`}, want: "Fixed true"},
		"too little memory":         {parameters: []string{`"kind": "ShareClass", "memory": {"min": "11Gi"}`}, wantErr: `consumedCapacity[memory]: Invalid value: "10Gi": the device class asks for at least 11Gi`},
		"too much memory and cores": {parameters: []string{`"kind": "ShareClass", "memory": {"max": "9Gi"}, "cores": {"max": 29}`}, wantErr: `consumedCapacity[cores]: Invalid value: 30: the device class allows at most 29`},
		"too few cores":             {parameters: []string{`"kind": "ShareClass", "cores": {"min": 31}`}, wantErr: "the device class asks for at least 31"},
		"two classes, one narrow":   {parameters: []string{`"kind": "ShareClass"`, `"kind": "ShareClass", "memory": {"max": "1Gi"}`}, wantErr: "allows at most 1Gi"},
		"unknown field":             {parameters: []string{`"kind": "ShareConfig", "corePolcy": "Burst"`}, wantErr: `unknown field "corePolcy" in the parameters of a claim`},
		"a class's kind in a claim": {parameters: []string{`"kind": "ShareConfig", "cores": {}`}, wantErr: `unknown field "cores"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			claim := withParameters(claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "30")), tc.parameters...)
			_, err := prepare(t, d, claim)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("got error %v, want %q", err, tc.wantErr)
				}
				nothingLeft(t, r)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a := d.booked[claim.UID].Allocations[0]
			if got := fmt.Sprintf("%s %t", a.Limits.CorePolicy, a.limited()); got != tc.want {
				t.Errorf("policy and limit are %q, want %q", got, tc.want)
			}
			spec := read(t, d.config.Layout.SpecDir+"/gpu.aliquot.dev-share_c-uid.json")
			if strings.Contains(spec, "libaliquot") != a.limited() {
				t.Errorf("limited: %t, spec: %s", a.limited(), spec)
			}
		})
	}
}
