package internal

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "aliquot.dev/aliquot/"

// allowed is the layout of docs/architecture.md: what each package of ours may import of ours. Test files may import
// more.
var allowed = map[string][]string{
	"api/v1alpha1":        {},
	"cdi":                 {},
	"cdi/preload":         {},
	"internal":            {},
	"internal/gpu":        {},
	"internal/nvml":       {"internal/gpu"},
	"internal/inventory":  {"api/v1alpha1", "internal/gpu"},
	"internal/quota":      {"api/v1alpha1", "internal/gpu"},
	"internal/usage":      {"cdi", "internal/gpu"},
	"internal/admission":  {"api/v1alpha1"},
	"internal/sharequota": {"api/v1alpha1"},
	"internal/classes":    {"api/v1alpha1", "internal/admission", "internal/inventory"},
	"internal/preflight":  {"api/v1alpha1", "internal/gpu", "internal/inventory"},
	"internal/driver":     {"api/v1alpha1", "cdi", "internal/gpu", "internal/inventory", "internal/quota", "internal/usage"},
	"cmd/kubelet-plugin":  {"api/v1alpha1", "cdi", "internal/driver", "internal/gpu", "internal/nvml", "internal/preflight"},
	"cmd/controller":      {"api/v1alpha1", "internal/admission", "internal/classes", "internal/sharequota"},
	"deployments":         {},
	"cdi/preload/bench":   {"e2e/simdriver"},

	// It starts a cluster as the end-to-end tests do, with a fleet that no simulated node publishes.
	"cmd/controller/bench": {"api/v1alpha1", "e2e/bench", "e2e/cluster", "e2e/release", "internal/gpu", "internal/inventory"},
	// It starts the API server of such a cluster, and is the kubelet itself.
	"cmd/kubelet-plugin/bench": {"api/v1alpha1", "e2e/bench", "e2e/cluster", "e2e/simdriver"},
	"cdi/preload/bench/cores":  {"cdi", "e2e/simdriver", "e2e/simrun", "internal/gpu", "internal/usage"},
	"cdi/preload/gpucheck":     {"cdi", "internal/gpu", "internal/nvml", "internal/usage"},
}

type listed struct {
	ImportPath, Doc string
	Imports         []string
	GoFiles         []string
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Doc,Imports,GoFiles"}, args...)...)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	var packages []listed
	decoder := json.NewDecoder(strings.NewReader(string(output)))
	for {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func TestImportsFollowTheLayout(t *testing.T) {
	for _, p := range list(t, "-e", module+"...") {
		path := strings.TrimPrefix(p.ImportPath, module)
		endToEnd := strings.HasPrefix(path, "e2e/")
		may, known := allowed[path]
		if !known && !endToEnd {
			t.Errorf("%s is not in the layout: add it to docs/architecture.md and to this test", path)
		}
		for _, imported := range p.Imports {
			ours, isOurs := strings.CutPrefix(imported, module)
			if !isOurs || slices.Contains(may, ours) {
				continue
			}
			if endToEnd && (strings.HasPrefix(ours, "e2e/") || ours == "api/v1alpha1") {
				continue
			}
			t.Errorf("%s imports %s, which the layout does not allow", path, ours)
		}
	}
}

// TestOnlyNVMLNeedsTheDriversLibraries keeps all else buildable and testable without cgo.
func TestOnlyNVMLNeedsTheDriversLibraries(t *testing.T) {
	for path := range allowed {
		if path == "internal/nvml" || path == "cmd/kubelet-plugin" || path == "cdi/preload/gpucheck" {
			continue
		}
		for _, p := range list(t, "-e", "-deps", module+path) {
			if strings.HasPrefix(p.ImportPath, "github.com/NVIDIA/") {
				t.Errorf("%s depends on %s", path, p.ImportPath)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range list(t, "-e", module+"...") {
		if len(p.GoFiles) > 0 && len(strings.Fields(p.Doc)) < 5 {
			t.Errorf("%s: the package comment is %q: say what it is for and what it does not do", p.ImportPath, p.Doc)
		}
	}
}
