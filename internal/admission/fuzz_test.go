package admission

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"
)

// Whatever a claim says, the webhooks answer without a panic, and not at length.
func FuzzClaim(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			raw, err := yaml.YAMLToJSON(data)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw, strings.Contains(string(raw), "Template"))
		}
	}
	handlers := Handlers(New(newCluster(f, "h100x8", "t4x4")))
	f.Fuzz(func(t *testing.T, raw []byte, template bool) {
		m := manifest{file: "fuzzed", raw: raw, kind: "ResourceClaim"}
		if template {
			m.kind = "ResourceClaimTemplate"
		}
		for _, path := range []string{PathDefaultClaim, PathValidateClaim, PathValidateClass} {
			if path == PathValidateClass {
				m.kind = "DeviceClass"
			}
			modest(t, path, handlers[path].Handle(t.Context(), m.request()))
		}
	})
}

func modest(t *testing.T, path string, answer webhook.Response) {
	t.Helper()
	for _, warning := range answer.Warnings {
		if strings.Contains(warning, "panic") {
			t.Errorf("%s: %s", path, warning)
		}
	}
	if answer.Result != nil && len(answer.Result.Message) > 100_000 || len(answer.Warnings) > mostFindings+1 {
		t.Errorf("%s: %d warnings, and an answer of %d bytes", path, len(answer.Warnings), len(answer.Result.Message))
	}
}
