package deployments

import (
	"math"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// definition is ShareQuota's as the API server has it after defaulting.
func definition(t *testing.T) *apiextensions.CustomResourceDefinition {
	t.Helper()
	written := only[*apiextensionsv1.CustomResourceDefinition](t, decode(t, mustTemplate(t)))
	apiextensionsv1.SetDefaults_CustomResourceDefinition(written)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&written.Spec)
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(written, &internal, nil); err != nil {
		t.Fatal(err)
	}
	return &internal
}

func TestShareQuotaDefinition(t *testing.T) {
	crd := definition(t)
	if crd.Annotations["helm.sh/resource-policy"] != "keep" {
		t.Error("an uninstall takes all ShareQuotas with it")
	}
	if crd.Spec.Group != v1alpha1.GroupVersion.Group || crd.Spec.Versions[0].Name != v1alpha1.GroupVersion.Version {
		t.Errorf("it is of %s/%s", crd.Spec.Group, crd.Spec.Versions[0].Name)
	}
}

func TestShareQuotaValidation(t *testing.T) {
	crd := definition(t)
	props := crd.Spec.Validation
	if props == nil {
		props = crd.Spec.Versions[0].Schema
	}
	structural, err := schema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	openapi, _, err := validation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	rules := cel.NewValidator(structural, true, apiservercel.PerCallLimit)
	tests := []struct {
		spec string
		want string // "" means valid
	}{
		{spec: "{largest: {memory: 40Gi, cores: 50}, deviceClasses: [share.gpu.aliquot.dev], hard: {memory: 100Gi, cores: 300, shares: 20}}"},
		{spec: "{hard: {memory: 107374182400}}"},
		{spec: "{hard: {memory: 0}}"},
		{spec: "{}", want: "spec: Invalid value: limits nothing: set largest, deviceClasses or hard"},
		{spec: "{hard: {}}", want: "spec.hard: Invalid value: limits nothing: set memory, cores or shares"},
		{spec: "{largest: {}}", want: "spec.largest: Invalid value: limits nothing: set memory or cores"},
		{spec: "{hard: {memory: -1Gi}}", want: `spec.hard.memory: Invalid value: want a whole number of bytes, 0 at least`},
		{spec: "{hard: {memory: 100m}}", want: `spec.hard.memory: Invalid value: want a whole number of bytes, 0 at least`},
		{spec: "{hard: {memory: 1.5}}", want: `spec.hard.memory`},
		{spec: "{hard: {memory: lots}}", want: `spec.hard.memory`},
		{spec: "{hard: {memory: " + strings.Repeat("9", 30) + "Ei}}", want: `spec.hard.memory: Invalid value: want a whole number of bytes`},
		{spec: "{hard: {cores: -1}}", want: "spec.hard.cores: Invalid value: -1: spec.hard.cores in body should be greater than or equal to 0"},
		{spec: "{hard: {cores: 1.5}}", want: "spec.hard.cores"},
		{spec: "{hard: {shares: -1}}", want: "spec.hard.shares"},
		{spec: "{largest: {memory: 1023Ki}}", want: `spec.largest.memory: Invalid value: want a whole number of bytes, 1Mi at least`},
		{spec: "{largest: {memory: 1024Ki}}"},
		{spec: "{largest: {cores: 101}}", want: "spec.largest.cores: Invalid value: 101: spec.largest.cores in body should be less than or equal to 100"},
		{spec: "{deviceClasses: []}", want: "spec.deviceClasses in body should have at least 1 items"},
		{spec: "{deviceClasses: [My_Class]}", want: "spec.deviceClasses[0]"},
		{spec: "{deviceClasses: [a.b, a.b]}", want: "spec.deviceClasses[1]: Duplicate value"},
	}
	for _, tc := range tests {
		t.Run(tc.spec, func(t *testing.T) {
			quota := shareQuota(t, tc.spec)
			errs := validation.ValidateCustomResource(nil, quota.Object, openapi)
			errs = append(errs, listtype.ValidateListSetsAndMaps(nil, structural, quota.Object)...)
			broken, _ := rules.Validate(t.Context(), nil, structural, quota.Object, nil, math.MaxInt64)
			errs = append(errs, broken...)
			if got := text(errs); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// text leaves out the values of CEL's errors, which are whole objects.
func text(errs field.ErrorList) string {
	var lines []string
	for _, err := range errs {
		if strings.Contains(err.Detail, "at least") && err.Type == field.ErrorTypeInvalid || strings.Contains(err.Detail, "limits nothing") {
			lines = append(lines, err.Field+": "+err.Type.String()+": "+err.Detail)
		} else {
			lines = append(lines, err.Error())
		}
	}
	return strings.Join(lines, "; ")
}

// What the controller writes must pass the definition, or it could write nothing.
func TestShareQuotaStatusIsValid(t *testing.T) {
	props := definition(t).Spec.Validation
	openapi, _, err := validation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	var quota v1alpha1.ShareQuota
	if err := yaml.Unmarshal([]byte("{spec: {hard: {memory: 1Gi}}, status: {used: {memory: 0, cores: 0, shares: 0}, reservations: [{uid: a, name: b, memory: 0, cores: 0, shares: 1}]}}"), &quota); err != nil {
		t.Fatal(err)
	}
	quota.Status.Reservations[0].Time.Time = quota.Status.Reservations[0].Time.AddDate(2026, 0, 0)
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&quota)
	if err != nil {
		t.Fatal(err)
	}
	if errs := validation.ValidateCustomResource(nil, object, openapi); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}
