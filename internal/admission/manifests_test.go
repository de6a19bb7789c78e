package admission

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite what the cases in testdata expect")

// manifest is one case: an object as people apply it, and what they are to be told.
type manifest struct {
	file             string
	raw              []byte
	kind, name       string
	errors, warnings []string
	byServer         bool // the API server refuses it too, and first
}

// manifests reads the cases of a folder. The lines at a file's beginning say what is expected:
//
//	# error: a line of the message with which the object is refused
//	# warning: a warning
//	# refused-by: api-server (it finds the error itself, so ours is only seen where it does not look)
func manifests(t testing.TB, dir string) []manifest {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", dir, files, err)
	}
	var all []manifest
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := manifest{file: file}
		for line := range strings.Lines(string(data)) {
			if text, ok := strings.CutPrefix(line, "# error: "); ok {
				m.errors = append(m.errors, strings.TrimSpace(text))
			} else if text, ok := strings.CutPrefix(line, "# warning: "); ok {
				m.warnings = append(m.warnings, strings.TrimSpace(text))
			} else if strings.HasPrefix(line, "# refused-by: api-server") {
				m.byServer = true
			}
		}
		if m.raw, err = yaml.YAMLToJSONStrict(data); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var meta metav1.PartialObjectMetadata
		if err := json.Unmarshal(m.raw, &meta); err != nil || meta.APIVersion != "resource.k8s.io/v1" {
			t.Fatalf("%s: %v, %v", file, meta, err)
		}
		m.kind, m.name = meta.Kind, meta.Name
		all = append(all, m)
	}
	return all
}

func (m manifest) request() webhook.Request {
	return webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Kind: metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: m.kind}, Operation: admissionv1.Create,
		Object: runtime.RawExtension{Raw: m.raw},
	}}
}

// apply does what the API server does with an object: defaults, then checks. It returns the object as it is then.
func apply(t testing.TB, c *Checker, m manifest) (webhook.Response, []byte) {
	t.Helper()
	handlers := Handlers(c)
	if m.kind == "DeviceClass" {
		return handlers[PathValidateClass].Handle(t.Context(), m.request()), m.raw
	}
	defaulted := handlers[PathDefaultClaim].Handle(t.Context(), m.request())
	if !defaulted.Allowed {
		t.Errorf("%s: not allowed by the defaults: %v", m.file, defaulted.Result)
	}
	if len(defaulted.Patch) > 0 {
		patch, err := jsonpatch.DecodePatch(defaulted.Patch)
		if err != nil {
			t.Fatalf("%s: %v in %s", m.file, err, defaulted.Patch)
		}
		if m.raw, err = patch.Apply(m.raw); err != nil {
			t.Fatalf("%s: apply %s: %v", m.file, defaulted.Patch, err)
		}
	}
	return handlers[PathValidateClaim].Handle(t.Context(), m.request()), m.raw
}

// rewrite makes a file expect what is told.
func (m manifest) rewrite(t *testing.T, told webhook.Response) {
	t.Helper()
	data, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, line := range lines(told.Result.Message) {
		text += "# error: " + line + "\n"
	}
	for _, warning := range told.Warnings {
		text += "# warning: " + warning + "\n"
	}
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "# error: ") && !strings.HasPrefix(line, "# warning: ") {
			text += line
		}
	}
	if err := os.WriteFile(m.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func lines(message string) []string {
	if message == "" {
		return nil
	}
	return strings.Split(message, "\n")
}

func TestManifests(t *testing.T) {
	c := New(newCluster(t, "h100x8", "t4x4"))
	names := map[string]string{}
	for _, dir := range []string{"good", "bad"} {
		for _, m := range manifests(t, dir) {
			t.Run(dir+"/"+filepath.Base(m.file), func(t *testing.T) {
				if other := names[m.kind+m.name]; other != "" {
					t.Errorf("has the name of %s", other)
				}
				names[m.kind+m.name] = m.file
				response, _ := apply(t, c, m)
				if *update {
					m.rewrite(t, response)
					return
				}
				if good := dir == "good"; response.Allowed != good || good != (len(m.errors) == 0) {
					t.Errorf("allowed: %t, with the errors %q to be expected", response.Allowed, m.errors)
				}
				if diff := cmp.Diff(m.errors, lines(response.Result.Message)); diff != "" {
					t.Errorf("errors (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(m.warnings, slices.Clone(response.Warnings)); diff != "" {
					t.Errorf("warnings (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// What the API server would not even store proves nothing of this driver's webhooks.
func TestTheAPIServerTakesTheManifests(t *testing.T) {
	for _, dir := range []string{"good", "bad"} {
		for _, m := range manifests(t, dir) {
			if err := compiles(m); err != nil && !m.byServer {
				t.Errorf("%s: its expressions: %v", m.file, err)
			}
		}
	}
}

// compiles does with all expressions what validateCELExpression of k8s.io/kubernetes/pkg/apis/resource/validation does, with
// the features that are on by default in Kubernetes 1.37.
func compiles(m manifest) error {
	var object any
	if err := json.Unmarshal(m.raw, &object); err != nil {
		return err
	}
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})
	for _, expression := range expressionsIn(object) {
		result := compiler.CompileCELExpression(expression, dracel.Options{EnvType: ptr.To(environment.NewExpressions)})
		if result.Error != nil {
			return result.Error
		}
		if result.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			return fmt.Errorf("%s may cost %d", expression, result.MaxCost)
		}
	}
	return nil
}

func expressionsIn(object any) (all []string) {
	switch o := object.(type) {
	case []any:
		for _, element := range o {
			all = append(all, expressionsIn(element)...)
		}
	case map[string]any:
		for name, element := range o {
			if text, ok := element.(string); ok && name == "expression" {
				all = append(all, text)
			}
			all = append(all, expressionsIn(element)...)
		}
	}
	return all
}
