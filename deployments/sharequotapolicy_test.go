package deployments

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionapi "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"
)

const quotas = "-sharequotas"

// requests wraps requests into a claim.
func requests(t *testing.T, text string) resourceapi.ResourceClaimSpec {
	t.Helper()
	var spec resourceapi.ResourceClaimSpec
	if err := yaml.UnmarshalStrict([]byte(text), &spec.Devices.Requests); err != nil {
		t.Fatal(err)
	}
	return spec
}

func shareQuota(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	quota := &unstructured.Unstructured{}
	text := "{apiVersion: gpu.aliquot.dev/v1alpha1, kind: ShareQuota, metadata: {name: limits, namespace: team-a}, spec: " + spec + "}"
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := quota.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return quota
}

// judge says what becomes of a claim and of a template with one spec, which must be the same but for the path.
func judge(t *testing.T, policy compiledPolicy, spec resourceapi.ResourceClaimSpec, quota *unstructured.Unstructured) string {
	t.Helper()
	request := &admissionv1.AdmissionRequest{Operation: admissionv1.Create}
	claim := &admission.VersionedAttributes{VersionedKind: resourceapi.SchemeGroupVersion.WithKind("ResourceClaim")}
	claim.VersionedObject.Set(&resourceapi.ResourceClaim{Spec: spec})
	template := &admission.VersionedAttributes{VersionedKind: resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate")}
	template.VersionedObject.Set(&resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}})
	got := policy.decide(t, request, claim, quota)
	if of := policy.decide(t, request, template, quota); of != strings.Replace(got, "spec.devices", "spec.spec.devices", 1) {
		t.Errorf("a claim is refused with %q, a template with %q", got, of)
	}
	return got
}

func TestShareQuotaPolicy(t *testing.T) {
	const (
		largest = "{largest: {memory: 40Gi, cores: 50}}"
		classes = "{deviceClasses: [share.gpu.aliquot.dev, small.gpu.aliquot.dev]}"
	)
	share := func(class, asks string) string {
		return "[{name: gpu, exactly: {deviceClassName: " + class + ", capacity: {requests: {" + asks + "}}}}]"
	}
	tests := []struct {
		name     string
		quota    string
		requests string
		want     string // "" means allowed
	}{
		{name: "as much as may be", quota: largest, requests: share("share.gpu.aliquot.dev", "memory: 40Gi, cores: 50")},
		{name: "in another unit", quota: "{largest: {memory: 42949672960}}", requests: share("share.gpu.aliquot.dev", "memory: 40960Mi")},
		{name: "a byte too much", quota: largest, requests: share("share.gpu.aliquot.dev", "memory: 42949672961"),
			want: `spec.devices.requests[gpu] asks for 42949672961 of GPU memory, ShareQuota "limits" allows 40Gi for one share: ask for less`},
		{name: "more than a number of bytes", quota: "{largest: {memory: 1073741824}}", requests: share("share.gpu.aliquot.dev", "memory: 2Gi"),
			want: `spec.devices.requests[gpu] asks for 2Gi of GPU memory, ShareQuota "limits" allows 1073741824 for one share: ask for less`},
		{name: "too many cores", quota: largest, requests: share("share.gpu.aliquot.dev", "memory: 1Gi, cores: 51"),
			want: `spec.devices.requests[gpu] asks for 51 cores (percent of a GPU), ShareQuota "limits" allows 50 for one share: ask for less`},
		{name: "best effort only", quota: "{largest: {cores: 0}}", requests: share("share.gpu.aliquot.dev", "memory: 1Gi, cores: 1"),
			want: `spec.devices.requests[gpu] asks for 1 cores (percent of a GPU), ShareQuota "limits" allows 0 for one share: ask for less`},
		{name: "a whole GPU", quota: largest, requests: "[{name: all, exactly: {deviceClassName: gpu.aliquot.dev}}]",
			want: `spec.devices.requests[all] asks for no memory, which is a whole GPU, ShareQuota "limits" allows 40Gi for one share: set capacity.requests.memory`},
		{name: "cores but no memory", quota: largest, requests: share("share.gpu.aliquot.dev", "cores: 1"), want: `spec.devices.requests[gpu] asks for no memory, which is a whole GPU, ShareQuota "limits" allows 40Gi for one share: set capacity.requests.memory`},
		{name: "a whole GPU where cores are limited", quota: "{largest: {cores: 50}}", requests: "[{name: all, exactly: {deviceClassName: gpu.aliquot.dev}}]"},
		{name: "each share may be as large", quota: largest, requests: "[{name: gpu, exactly: {deviceClassName: share.gpu.aliquot.dev, count: 4, capacity: {requests: {memory: 40Gi}}}}]"},
		{name: "one alternative is too large", quota: largest,
			requests: "[{name: gpu, firstAvailable: [{name: small, deviceClassName: share.gpu.aliquot.dev, capacity: {requests: {memory: 10Gi}}}, {name: large, deviceClassName: share.gpu.aliquot.dev, capacity: {requests: {memory: 41Gi}}}]}]",
			want:     `spec.devices.requests[gpu/large] asks for 41Gi of GPU memory, ShareQuota "limits" allows 40Gi for one share: ask for less`},
		{name: "one alternative is a whole GPU", quota: largest, requests: "[{name: gpu, firstAvailable: [{name: whole, deviceClassName: gpu.aliquot.dev}]}]",
			want: `spec.devices.requests[gpu/whole] asks for no memory, which is a whole GPU, ShareQuota "limits" allows 40Gi for one share: set capacity.requests.memory`},
		{name: "another driver's", quota: largest, requests: "[{name: nic, exactly: {deviceClassName: nic.example.com}}, {name: gpu, exactly: {deviceClassName: evilgpu.aliquot.dev}}]"},
		{name: "beside another driver's", quota: largest, requests: "[{name: nic, exactly: {deviceClassName: nic.example.com}}, {name: gpu, exactly: {deviceClassName: gpu.aliquot.dev}}]",
			want: `spec.devices.requests[gpu] asks for no memory, which is a whole GPU, ShareQuota "limits" allows 40Gi for one share: set capacity.requests.memory`},
		{name: "a class made by hand", quota: largest, requests: share("by-hand.example.com", "memory: 41Gi"),
			want: `spec.devices.requests[gpu] asks for 41Gi of GPU memory, ShareQuota "limits" allows 40Gi for one share: ask for less`},
		{name: "a class of the chart's by another name", quota: largest, requests: share("hopper.example.com", "memory: 41Gi"),
			want: `spec.devices.requests[gpu] asks for 41Gi of GPU memory, ShareQuota "limits" allows 40Gi for one share: ask for less`},
		{name: "an administrator looks", quota: largest, requests: "[{name: gpu, exactly: {deviceClassName: gpu.aliquot.dev, adminAccess: true}}]"},
		{name: "a class that is allowed", quota: classes, requests: share("small.gpu.aliquot.dev", "memory: 1Gi")},
		{name: "a class that is not", quota: classes, requests: "[{name: gpu, exactly: {deviceClassName: gpu.aliquot.dev}}]",
			want: `spec.devices.requests[gpu] names device class "gpu.aliquot.dev", ShareQuota "limits" allows share.gpu.aliquot.dev, small.gpu.aliquot.dev in this namespace: name one of these`},
		{name: "an alternative's class that is not", quota: classes, requests: "[{name: gpu, firstAvailable: [{name: a, deviceClassName: share.gpu.aliquot.dev}, {name: b, deviceClassName: mig.gpu.aliquot.dev}]}]",
			want: `spec.devices.requests[gpu/b] names device class "mig.gpu.aliquot.dev", ShareQuota "limits" allows share.gpu.aliquot.dev, small.gpu.aliquot.dev in this namespace: name one of these`},
		{name: "another driver's class", quota: classes, requests: "[{name: nic, exactly: {deviceClassName: nic.example.com}}]"},
		{name: "only totals are limited", quota: "{hard: {memory: 1Gi}}", requests: "[{name: gpu, exactly: {deviceClassName: gpu.aliquot.dev}}]"},
		{name: "no requests", quota: largest, requests: "[]"},
	}
	policy := compilePolicy(t, named[*admissionapi.ValidatingAdmissionPolicy](t, decode(t, mustTemplate(t, "--values", "testdata/full.values.yaml")), quotas))
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if got := judge(t, policy, requests(t, tc.requests), shareQuota(t, tc.quota)); got != tc.want {
				t.Errorf("refused with %q\nwant         %q", got, tc.want)
			}
		})
	}
}

// An expression that runs out of its budget would let the claim pass.
func TestShareQuotaPolicyWithinBudget(t *testing.T) {
	long := func(i int) string { return fmt.Sprintf("%s%03d.gpu.aliquot.dev", strings.Repeat("x", 220), i) }
	var spec resourceapi.ResourceClaimSpec
	for i := range resourceapi.DeviceRequestsMaxSize {
		request := resourceapi.DeviceRequest{Name: fmt.Sprint("r", i)}
		for j := range resourceapi.FirstAvailableDeviceRequestMaxSize {
			asked := requests(t, "[{name: a, firstAvailable: [{deviceClassName: x, capacity: {requests: {memory: 1Gi, cores: 10}}}]}]").Devices.Requests[0].FirstAvailable[0]
			asked.Name, asked.DeviceClassName = fmt.Sprint("s", j), long(63)
			request.FirstAvailable = append(request.FirstAvailable, asked)
		}
		spec.Devices.Requests = append(spec.Devices.Requests, request)
	}
	spec.Devices.Requests[31].FirstAvailable[7].DeviceClassName = long(64)
	var classes []string
	for i := range 64 {
		classes = append(classes, long(i))
	}
	policy := compilePolicy(t, named[*admissionapi.ValidatingAdmissionPolicy](t, decode(t, mustTemplate(t)), quotas))
	quota := shareQuota(t, "{largest: {memory: 40Gi, cores: 50}, deviceClasses: ["+strings.Join(classes, ", ")+"]}")
	if got := judge(t, policy, spec, quota); !strings.Contains(got, "[r31/s7] names") {
		t.Errorf("refused with %q", got)
	}
}

func TestShareQuotaPolicyMatches(t *testing.T) {
	objects := decode(t, mustTemplate(t))
	spec := named[*admissionapi.ValidatingAdmissionPolicy](t, objects, quotas).Spec
	if got := fmt.Sprint(*spec.ParamKind, len(spec.MatchConstraints.ResourceRules), spec.MatchConstraints.ResourceRules[0].Resources, spec.MatchConstraints.ResourceRules[0].Operations); got !=
		"{gpu.aliquot.dev/v1alpha1 ShareQuota} 1 [resourceclaims resourceclaimtemplates] [CREATE]" {
		t.Errorf("the policy judges %s", got)
	}
	if *spec.FailurePolicy != admissionapi.Ignore {
		t.Error("a missing definition of ShareQuota would stop the claims of all drivers")
	}
	binding := named[*admissionapi.ValidatingAdmissionPolicyBinding](t, objects, quotas).Spec
	if ref := binding.ParamRef; ref.Name != "" || ref.Namespace != "" || ref.Selector == nil || *ref.ParameterNotFoundAction != admissionapi.AllowAction {
		t.Errorf("parameters are %+v, want all of the claim's namespace", ref)
	}
	if got := fmt.Sprint(binding.ValidationActions); got != "[Deny]" || binding.MatchResources != nil {
		t.Errorf("the binding does %s, to %v", got, binding.MatchResources)
	}
}
