package admission

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// manifest is one case: an object as people apply it, and what they are to be told.
type manifest struct {
	file             string
	raw              []byte
	kind             string
	errors, warnings []string
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
			}
		}
		if m.raw, err = yaml.YAMLToJSONStrict(data); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var meta metav1.TypeMeta
		if err := json.Unmarshal(m.raw, &meta); err != nil || meta.APIVersion != "resource.k8s.io/v1" {
			t.Fatalf("%s: %v, %v", file, meta, err)
		}
		m.kind = meta.Kind
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

func TestManifests(t *testing.T) {
	c := New(newCluster(t, "h100x8", "t4x4"))
	for _, dir := range []string{"good", "bad"} {
		for _, m := range manifests(t, dir) {
			t.Run(dir+"/"+filepath.Base(m.file), func(t *testing.T) {
				response, _ := apply(t, c, m)
				if good := dir == "good"; response.Allowed != good || good != (len(m.errors) == 0) {
					t.Errorf("allowed: %t, with the errors %q to be expected", response.Allowed, m.errors)
				}
				var told []string
				if response.Result.Message != "" {
					told = strings.Split(response.Result.Message, "\n")
				}
				if diff := cmp.Diff(m.errors, told); diff != "" {
					t.Errorf("errors (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(m.warnings, slices.Clone(response.Warnings)); diff != "" {
					t.Errorf("warnings (-want +got):\n%s", diff)
				}
			})
		}
	}
}
