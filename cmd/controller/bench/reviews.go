package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/yaml"
)

// Kinds of reviews.
const (
	defaults = "defaults"        // any object, before it is checked
	good     = "good"            // claims and templates that are let in
	bad      = "bad"             // those that are refused
	fresh    = "new expressions" // claims with a selector that nobody sent before
	reserve  = "reservations"    // claims of a namespace whose totals are limited: a read and a write at the API server
)

// checks are the kinds that the controller answers from what it has in memory.
var checks = []string{defaults, good, bad, fresh}

// casesDir has the objects that the tests of the checks are about.
const casesDir = "internal/admission/testdata"

// review is a question to a webhook and what it must answer.
type review struct {
	kind, path, name string
	uid              types.UID
	body             []byte
	allowed          bool
}

// object is a claim or a template, before and after the defaults of its class.
type object struct {
	kind               string // of the API
	applied, defaulted map[string]any
}

// mix makes objects in turn.
type mix struct {
	good, bad []object
	made      int
}

// newMix reads the cases and asks the controller for their defaults.
func newMix(ctx context.Context, controller *process) (*mix, error) {
	m := &mix{}
	for dir, objects := range map[string]*[]object{"good": &m.good, "bad": &m.bad} {
		files, err := filepath.Glob(filepath.Join(casesDir, dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("find cases in %s, from the root of the repository: %v, %w", casesDir, files, err)
		}
		for _, file := range files {
			o, err := read(file)
			if err != nil {
				return nil, err
			}
			if o.kind == "DeviceClass" {
				continue
			}
			if err := o.fill(ctx, controller); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			*objects = append(*objects, o)
		}
	}
	return m, nil
}

func read(file string) (object, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return object{}, err
	}
	var applied map[string]any
	if err := yaml.Unmarshal(data, &applied); err != nil {
		return object{}, fmt.Errorf("read %s: %w", file, err)
	}
	kind, _ := applied["kind"].(string)
	return object{kind: kind, applied: applied, defaulted: applied}, nil
}

// fill sets what the API server would send to be validated.
func (o *object) fill(ctx context.Context, controller *process) error {
	r := o.review(defaults, "default", "case", o.applied, true)
	body, err := controller.ask(ctx, r)
	if err != nil {
		return err
	}
	response, err := r.answer(body)
	if err != nil || len(response.Patch) == 0 {
		return err
	}
	patch, err := jsonpatch.DecodePatch(response.Patch)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(o.applied)
	if err != nil {
		return err
	}
	if raw, err = patch.Apply(raw); err != nil {
		return err
	}
	o.defaulted = nil
	return json.Unmarshal(raw, &o.defaulted)
}

// reviews are those of a round: for each object one for its defaults and one to check it. Of 20 objects 13 are good, 4
// are bad, 2 reserve, and one has an expression of its own.
func (m *mix) reviews(round time.Duration) []review {
	var all []review
	for len(all) < int(round.Seconds()*reviewsPerSec) {
		m.made++
		o, kind, namespace := m.next()
		name := fmt.Sprintf("object-%d", m.made)
		all = append(all,
			o.review(defaults, namespace, name, o.applied, true),
			o.review(kind, namespace, name, o.defaulted, kind != bad))
	}
	return all
}

func (m *mix) next() (o object, kind, namespace string) {
	namespace = fmt.Sprintf("free-%d", m.made%5)
	switch m.made % 20 {
	case 3, 8, 13, 18:
		return m.bad[m.made/5%len(m.bad)], bad, namespace
	case 6, 16:
		return claim(""), reserve, reserving(m.made / 10)
	case 11:
		// By name, as people bind a claim to one GPU, and by size.
		expression := fmt.Sprintf("device.attributes['gpu.aliquot.dev'].?uuid.orValue('') == '%s'", gpuUUID(m.made/40, 0))
		if m.made%40 == 11 {
			expression = fmt.Sprintf("device.capacity['gpu.aliquot.dev'].memory.compareTo(quantity('%dKi')) >= 0", 1+m.made)
		}
		return claim(expression), fresh, namespace
	}
	return m.good[m.made%len(m.good)], good, namespace
}

// claim asks for a share of a GPU that matches an expression, if there is one.
func claim(expression string) object {
	request := map[string]any{"deviceClassName": "share.gpu.aliquot.dev", "capacity": map[string]any{"requests": map[string]any{"memory": "1Gi", "cores": "10"}}}
	if expression != "" {
		request["selectors"] = []any{map[string]any{"cel": map[string]any{"expression": expression}}}
	}
	applied := map[string]any{
		"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
		"spec": map[string]any{"devices": map[string]any{"requests": []any{map[string]any{"name": "gpu", "exactly": request}}}},
	}
	return object{kind: "ResourceClaim", applied: applied, defaulted: applied}
}

// review wraps an object as the API server does.
func (o object) review(kind, namespace, name string, content map[string]any, allowed bool) review {
	content = maps.Clone(content)
	content["metadata"] = map[string]any{
		"name": name, "namespace": namespace, "uid": uuid.NewUUID(), "creationTimestamp": time.Now().UTC().Format(time.RFC3339),
		"managedFields": []any{map[string]any{
			"manager": "kubectl-create", "operation": "Update", "apiVersion": "resource.k8s.io/v1", "time": time.Now().UTC().Format(time.RFC3339),
			"fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:devices": map[string]any{"f:requests": map[string]any{}}}},
		}},
	}
	r := review{kind: kind, path: "/validate-claim", name: name, uid: uuid.NewUUID(), allowed: allowed}
	if kind == defaults {
		r.path = "/default-claim"
	}
	gvk := metav1.GroupVersionKind{Group: resourceapi.GroupName, Version: "v1", Kind: o.kind}
	gvr := metav1.GroupVersionResource{Group: resourceapi.GroupName, Version: "v1", Resource: map[string]string{
		"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates",
	}[o.kind]}
	r.body = encode(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: r.uid, Kind: gvk, Resource: gvr, RequestKind: &gvk, RequestResource: &gvr, Name: name, Namespace: namespace, Operation: admissionv1.Create,
			UserInfo: authenticationv1.UserInfo{Username: "somebody", Groups: []string{"system:authenticated"}},
			Object:   runtime.RawExtension{Raw: encode(content)}, DryRun: new(bool),
		},
	})
	return r
}

// encode is for values that can be encoded.
func encode(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return data
}
