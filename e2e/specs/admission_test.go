//go:build e2e

package specs_test

import (
	"context"
	"io"
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

// outcome is what kubectl says when manifests are applied.
type outcome struct {
	ok       bool
	warnings []string
	rest     string // all that is no warning
	output   string
}

func (s *spec) applied(manifests string) outcome {
	s.Helper()
	return s.applies(strings.NewReader(manifests), "-f", "-")
}

func (s *spec) applies(stdin io.Reader, args ...string) outcome {
	s.Helper()
	cmd := s.Command(s.Context(), "kubectl", append([]string{"apply", "--namespace", s.namespace}, args...)...)
	cmd.Stdin = stdin
	output, err := cmd.CombinedOutput()
	a := outcome{ok: err == nil, output: string(output)}
	for line := range strings.Lines(a.output) {
		if warning, ok := strings.CutPrefix(line, "Warning: "); ok {
			a.warnings = append(a.warnings, strings.TrimSpace(warning))
		} else {
			a.rest += line
		}
	}
	return a
}

var (
	// Each refusal begins a line of its own; what ours says may go on over several.
	refusals = regexp.MustCompile(`(?m)^(Error from server|The [A-Za-z]+ "[^"]*" is invalid)`)
	denied   = regexp.MustCompile(`(?s)error when creating "([^"]*)": admission webhook "[a-z]+\.gpu\.aliquot\.dev" denied the request: (.*)\n$`)
)

// denials are what our webhooks say, a line each, by the file that they refuse.
func (o outcome) denials() map[string][]string {
	found := map[string][]string{}
	starts := refusals.FindAllStringIndex(o.rest, -1)
	for i, start := range starts {
		end := len(o.rest)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		if d := denied.FindStringSubmatch(o.rest[start[0]:end]); d != nil {
			found[filepath.Base(d[1])] = strings.Split(d[2], "\n")
		}
	}
	return found
}

// What people are told by kubectl when they apply claims and classes, in the words of the cases that the checks' own
// tests use. It runs alone: on a busy machine the API server may wait in vain for the webhook, and then nothing is warned of.
func TestMistakesAreToldWhenTheyAreApplied(t *testing.T) {
	s := alone(t, sharing)
	s.publishes(true)
	s.kubectl("label", "namespace", s.namespace, "resource.kubernetes.io/admin-access=true") // one case asks for it
	classes, err := os.ReadFile(filepath.Join(testdata, "classes.yaml"))
	s.must(err)
	if a := s.applied(string(classes)); !a.ok {
		t.Fatal(a.output)
	}
	good, bad := s.manifests("good"), s.manifests("bad")
	if len(good)+len(bad) < 60 {
		t.Errorf("%d cases", len(good)+len(bad))
	}
	t.Cleanup(func() {
		s.unapply(filepath.Join(testdata, "classes.yaml"))
		s.unapply(filepath.Join(testdata, "good"))
	})
	s.applyGood(good)
	s.applyBad(bad)
}

// applyGood applies at once what draws no warning, and the others one by one.
func (s *spec) applyGood(cases []manifest) {
	s.Helper()
	var plain []string
	for _, m := range cases {
		if len(m.warnings) == 0 {
			plain = append(plain, m.text)
			continue
		}
		a := s.applied(m.text)
		if !a.ok || !slices.Equal(anyDevice(a.warnings), anyDevice(m.warnings)) {
			s.Errorf("%s: kubectl says\n%s\nwant the warnings\n%s", m.file, a.output, strings.Join(m.warnings, "\n"))
		}
	}
	if a := s.applied(strings.Join(plain, "\n---\n")); !a.ok || len(a.warnings) > 0 {
		s.Errorf("what is good is not taken as it is:\n%s", a.output)
	}
}

// applyBad applies a folder of which nothing may be stored.
func (s *spec) applyBad(cases []manifest) {
	s.Helper()
	a := s.applies(nil, "-f", filepath.Join(testdata, "bad"))
	denials := a.denials()
	for _, m := range cases {
		got := denials[filepath.Base(m.file)]
		if !m.byServer && !slices.Equal(got, m.errors) {
			s.Errorf("%s: refused with\n%s\nwant\n%s", m.file, strings.Join(got, "\n"), strings.Join(m.errors, "\n"))
		}
	}
	if refused := len(refusals.FindAllString(a.rest, -1)); refused != len(cases) || strings.Contains(a.rest, " created\n") {
		s.Errorf("%d of %d were refused:\n%s", refused, len(cases), a.output)
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

// unapply deletes what was applied from a file or folder.
func (s *spec) unapply(path string) {
	output, err := s.Kubectl(context.Background(), "delete", "--ignore-not-found", "--wait=false", "--namespace", s.namespace, "-f", path)
	if err != nil {
		s.Errorf("%v: %s", err, output)
	}
}
