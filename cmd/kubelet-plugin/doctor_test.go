package main

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"aliquot.dev/aliquot/internal/preflight"
)

// doctor runs the subcommand on a machine that has nothing of what it looks for below dir.
func doctor(t *testing.T, dir string, args ...string) (stdout string, err error) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("CDI_DIR", filepath.Join(dir, "cdi")) // as the chart sets it for both commands
	var out bytes.Buffer
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{
		"doctor", "--driver-root-mount=" + dir, "--kubelet-registrar-dir=" + dir, "--kubelet-plugins-dir=" + dir, "--run-dir=" + dir,
	}, args...))
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestDoctorTellsWhatFailsAndFails(t *testing.T) {
	dir := t.TempDir()
	out, err := doctor(t, dir, "--node-name=n")
	if err == nil || !strings.Contains(err.Error(), "checks failed") {
		t.Errorf("got error %v", err)
	}
	for _, want := range []string{
		"FAIL  NVIDIA driver    find libnvidia-ml.so.1 under driver root / (seen at " + dir + ")",
		"-> install the NVIDIA driver, or set nvidiaDriverRoot",
		"FAIL  CDI directory    " + dir + "/cdi is not writable: no such file or directory",
		"warn  API server       not asked: configure the Kubernetes client",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

func TestDoctorSpeaksJSON(t *testing.T) {
	out, err := doctor(t, t.TempDir(), "--node-name=n", "-o", "json")
	if err == nil {
		t.Error("it did not fail")
	}
	var report preflight.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Node != "n" || report.Count(preflight.Fail) == 0 {
		t.Errorf("it printed %s (%v)", out, err)
	}
}

func TestDoctorRefusesBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--output=yaml":     `--output is "yaml": want text or json`,
		"--cdi-dir=cdi":     `--cdi-dir is "cdi": want an absolute path`,
		"--node-name=n now": "unknown command",
	} {
		if out, err := doctor(t, "/", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: got error %v, want %s; printed %q", args, err, want, out)
		}
	}
}

func TestDoctorNamesTheNodeByTheMachine(t *testing.T) {
	var f flags
	if err := nameNode(&f); f.nodeName == "" || err == nil || !strings.Contains(err.Error(), "want an absolute path") {
		t.Errorf("node %q, error %v", f.nodeName, err)
	}
}
