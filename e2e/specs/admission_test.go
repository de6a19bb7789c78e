//go:build e2e

package specs_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testdata has the cases of admission: what people apply, and in comments at the beginning what they are to be told.
const testdata = "../../internal/admission/testdata"

// manifest is one case.
type manifest struct {
	file, text       string
	errors, warnings []string
	byServer         bool // the API server itself refuses it, in its own words
}

func (s *spec) manifests(folder string) []manifest {
	s.Helper()
	files, err := filepath.Glob(filepath.Join(testdata, folder, "*.yaml"))
	s.must(err)
	var all []manifest
	for _, file := range files {
		data, err := os.ReadFile(file)
		s.must(err)
		m := manifest{file: filepath.Join(folder, filepath.Base(file)), text: string(data)}
		for line := range strings.Lines(m.text) {
			comment := strings.TrimSpace(line)
			if text, ok := strings.CutPrefix(comment, "# error: "); ok {
				m.errors = append(m.errors, text)
			} else if text, ok := strings.CutPrefix(comment, "# warning: "); ok {
				m.warnings = append(m.warnings, text)
			}
			m.byServer = m.byServer || strings.HasPrefix(comment, "# refused-by: api-server")
		}
		all = append(all, m)
	}
	return all
}

// outcome is what kubectl says when a manifest is applied.
type outcome struct {
	ok               bool
	errors, warnings []string
	output           string
}

var denied = regexp.MustCompile(`(?s)admission webhook "[a-z]+\.gpu\.aliquot\.dev" denied the request: (.*)\n$`)

func (s *spec) applied(manifests string) outcome {
	s.Helper()
	cmd := s.Command(s.Context(), "kubectl", "apply", "--namespace", s.namespace, "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	output, err := cmd.CombinedOutput()
	a := outcome{ok: err == nil, output: string(output)}
	var rest strings.Builder
	for line := range strings.Lines(a.output) {
		if warning, ok := strings.CutPrefix(line, "Warning: "); ok {
			a.warnings = append(a.warnings, strings.TrimSpace(warning))
		} else {
			rest.WriteString(line)
		}
	}
	if found := denied.FindStringSubmatch(rest.String()); found != nil {
		a.errors = strings.Split(found[1], "\n")
	}
	return a
}

// What people are told by kubectl when they apply claims and classes, in the words of the cases that the checks' own
// tests use.
func TestMistakesAreToldWhenTheyAreApplied(t *testing.T) {
	s := begin(t, sharing)
	s.kubectl("label", "namespace", s.namespace, "resource.kubernetes.io/admin-access=true") // one case asks for it
	classes, err := os.ReadFile(filepath.Join(testdata, "classes.yaml"))
	s.must(err)
	if a := s.applied(string(classes)); !a.ok {
		t.Fatal(a.output)
	}
	stored := string(classes)
	t.Cleanup(func() { s.unapply(stored) })
	good, bad := s.manifests("good"), s.manifests("bad")
	if len(good)+len(bad) < 60 {
		t.Errorf("%d cases", len(good)+len(bad))
	}
	for _, m := range slices.Concat(good, bad) {
		a := s.applied(m.text)
		if a.ok {
			stored += "\n---\n" + m.text
		}
		if want := len(m.errors) == 0 && !m.byServer; a.ok != want {
			t.Errorf("%s: applied: %t, want %t:\n%s", m.file, a.ok, want, a.output)
			continue
		}
		if !m.byServer && !slices.Equal(a.errors, m.errors) {
			t.Errorf("%s: kubectl says\n%s\nwant the errors\n%s", m.file, a.output, strings.Join(m.errors, "\n"))
		}
		if a.ok && !slices.Equal(anyDevice(a.warnings), anyDevice(m.warnings)) {
			t.Errorf("%s: kubectl says\n%s\nwant the warnings\n%s", m.file, a.output, strings.Join(m.warnings, "\n"))
		}
	}
}

var aDevice = regexp.MustCompile(`[a-z0-9-]+/gpus/[a-z0-9-]+(, which has [0-9.]+Gi)?`)

// anyDevice forgets which of the cluster's devices was looked at first: there are more than the cases know of.
func anyDevice(warnings []string) []string {
	var all []string
	for _, warning := range warnings {
		all = append(all, aDevice.ReplaceAllString(warning, "a device"))
	}
	return all
}

// kubectl ends the spec when kubectl fails.
func (s *spec) kubectl(args ...string) string {
	s.Helper()
	output, err := s.Kubectl(s.Context(), args...)
	s.must(err)
	return output
}

// unapply deletes what was applied.
func (s *spec) unapply(manifests string) {
	cmd := s.Command(context.Background(), "kubectl", "delete", "--ignore-not-found", "--wait=false", "--namespace", s.namespace, "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	if output, err := cmd.CombinedOutput(); err != nil {
		s.Errorf("%v: %s", err, output)
	}
}
