package v1alpha1

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// decodeAny decodes what says itself to be a class or a claim's parameters.
func decodeAny(raw []byte) (any, field.ErrorList) {
	var meta metav1.TypeMeta
	_ = json.Unmarshal(raw, &meta) // the decoder says what is wrong
	path := field.NewPath("parameters")
	switch meta.Kind {
	case KindShareClass:
		return DecodeShareClass(raw, path)
	case KindShareConfig, "":
		return DecodeShareConfig(raw, path)
	}
	return nil, field.ErrorList{field.NotSupported(path.Child("kind"), meta.Kind, []string{KindShareClass, KindShareConfig})}
}

func parametersIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", dir, files, err)
	}
	contents := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		contents[filepath.Base(file)] = string(data)
	}
	return contents
}

func TestGoodParameters(t *testing.T) {
	for name, content := range parametersIn(t, "good") {
		raw, err := yaml.YAMLToJSON([]byte(content))
		if err != nil {
			t.Fatal(err)
		}
		got, errs := decodeAny(raw)
		if len(errs) > 0 {
			t.Errorf("%s: %v", name, errs.ToAggregate())
			continue
		}
		var want, again any
		written, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if json.Unmarshal(raw, &want) != nil || json.Unmarshal(written, &again) != nil {
			t.Fatalf("%s is no JSON", name)
		}
		if diff := cmp.Diff(want, again); diff != "" {
			t.Errorf("%s is lost on the way (-file +decoded):\n%s", name, diff)
		}
	}
}

// The first line of each bad file has what the user is told.
func TestBadParameters(t *testing.T) {
	for name, content := range parametersIn(t, "bad") {
		comment, _, _ := strings.Cut(content, "\n")
		raw, err := yaml.YAMLToJSON([]byte(content))
		if err != nil {
			t.Fatal(err)
		}
		_, errs := decodeAny(raw)
		if len(errs) == 0 {
			t.Errorf("%s is accepted", name)
			continue
		}
		if got, want := errs.ToAggregate().Error(), strings.TrimPrefix(comment, "# "); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestFieldsThatStandThereTwice(t *testing.T) {
	_, errs := decodeAny([]byte(`{"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "ShareConfig", "corePolicy": "Fixed", "corePolicy": "Burst"}`))
	if len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), `duplicate field "corePolicy"`) {
		t.Errorf("got %v", errs)
	}
}

// Whatever users write, the decoder says yes or no, and what it accepts stays as it is.
func FuzzParameters(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		files, _ := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			raw, err := yaml.YAMLToJSON(data)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		first, errs := decodeAny(raw)
		if len(errs) > 0 {
			if len(errs.ToAggregate().Error()) > 20*len(raw)+2000 {
				t.Errorf("an error of %d bytes for %d", len(errs.ToAggregate().Error()), len(raw))
			}
			return
		}
		written, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		if _, errs := decodeAny(written); len(errs) > 0 {
			t.Errorf("%s is accepted, but not as it is written again, %s: %v", raw, written, errs)
		}
	})
}
