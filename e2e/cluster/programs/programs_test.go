package programs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVersionFlags(t *testing.T) {
	const want = " -X k8s.io/component-base/version.gitVersion=v1.37.2" +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
	if diff := cmp.Diff(want, versionFlags("v1.37.2")); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}

func TestRequiredVersion(t *testing.T) {
	const gomod = "module m\n\nrequire k8s.io/one v1.0.0\n\nrequire (\n\tk8s.io/api v0.37.2\n\tk8s.io/kubernetes v1.37.2 // indirect\n)\n"
	for module, want := range map[string]string{"k8s.io/one": "v1.0.0", "k8s.io/kubernetes": "v1.37.2"} {
		if got, err := requiredVersion([]byte(gomod), module); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %s", module, got, err, want)
		}
	}
	if _, err := requiredVersion([]byte(gomod), "k8s.io/none"); err == nil {
		t.Error("a module that is not required is no error")
	}
}

// Every program must be a tool of its module, or go.sum would not guard it.
func TestProgramsAreToolsOfTheirModules(t *testing.T) {
	source, err := sourceFolder()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		gomod, err := os.ReadFile(filepath.Join(source, p.module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(gomod), "\t"+p.pkg+"\n") && !strings.Contains(string(gomod), "tool "+p.pkg+"\n") {
			t.Errorf("%s/go.mod has no tool %s", p.module, p.pkg)
		}
	}
}

func TestContentKeyFollowsThePins(t *testing.T) {
	source := t.TempDir()
	for _, module := range modules() {
		if err := os.Mkdir(filepath.Join(source, module), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"go.mod", "go.sum"} {
			if err := os.WriteFile(filepath.Join(source, module, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	key := func(version, compiler string) string {
		t.Helper()
		key, err := contentKey(source, version, compiler)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	keys := map[string]string{"first": key("v1.2.3", "go1"), "version": key("v1.2.4", "go1"), "compiler": key("v1.2.3", "go2")}
	if err := os.WriteFile(filepath.Join(source, "helm", "go.sum"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	keys["sum"] = key("v1.2.3", "go1")
	seen := make(map[string]string)
	for change, key := range keys {
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have one key", change, other)
		}
		seen[key] = change
	}
}
