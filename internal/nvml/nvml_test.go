package nvml

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"sigs.k8s.io/yaml"

	"aliquot.dev/aliquot/e2e/simdriver"
)

var update = flag.Bool("update", false, "rewrite golden files")

const hook = "/host/nvidia-cdi-hook"

// ownProcess runs the calling test in a process of its own, in which it returns true: a process keeps the NVML that it
// loaded first, so it can look at one root only.
func ownProcess(t *testing.T, prepare ...func(*exec.Cmd)) bool {
	t.Helper()
	const variable = "ALIQUOT_TEST_CHILD"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(os.Args[1:], "-test.run="+pattern, "-test.v")...)
	// The race detector would have each process wait a second at its end.
	cmd.Env = append(os.Environ(), variable+"="+t.Name(), "GORACE=atexit_sleep_ms=0")
	for _, change := range prepare {
		change(cmd)
	}
	output, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in its own process: %v\n%s", err, output)
	case bytes.Contains(output, []byte("--- SKIP")):
		t.Skipf("in its own process:\n%s", output)
	case !bytes.Contains(output, []byte("--- PASS")):
		t.Errorf("in its own process nothing ran:\n%s", output)
	}
	return false
}

// root makes the driver root of a simulated node.
func root(t *testing.T, description string) *simdriver.Root {
	t.Helper()
	return rootOf(t, hardware(t, description))
}

func hardware(t *testing.T, description string) simdriver.Hardware {
	t.Helper()
	hw, err := simdriver.Load(description)
	if err != nil {
		t.Fatal(err)
	}
	return hw
}

func rootOf(t *testing.T, hw simdriver.Hardware) *simdriver.Root {
	t.Helper()
	r, err := simdriver.NewRoot(t.Context(), filepath.Join(t.TempDir(), "root"), hw)
	if errors.Is(err, simdriver.ErrNotRoot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func open(r *simdriver.Root) *Node {
	n := New(Driver{Root: "/run/nvidia/driver", RootMount: r.Path, CDIHook: hook})
	n.sysfs = []deviceattribute.MachineModifier{deviceattribute.WithFSFromRoot(filepath.Join(r.Path, "sys"))}
	return n
}

// TestDevicesOfEveryDescription reads each simulated node through go-nvml. What it finds is the fixture that other
// packages' tests use.
func TestDevicesOfEveryDescription(t *testing.T) {
	for _, description := range simdriver.Names() {
		t.Run(description, func(t *testing.T) {
			if !ownProcess(t) {
				return
			}
			devices, skipped, err := open(root(t, description)).Devices()
			if err != nil || len(skipped) > 0 {
				t.Fatalf("got error %v, skipped %v", err, skipped)
			}
			got, err := yaml.Marshal(devices)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("..", "gpu", "testdata", description+".yaml")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEditsNameTheHostsFiles(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	r := root(t, "mixed")
	n := open(r)
	devices, _, err := n.Devices()
	if err != nil {
		t.Fatal(err)
	}
	common, byGPU, err := n.Edits([]string{devices[0].UUID, devices[2].UUID})
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(map[string]any{"common": common, "byGPU": byGPU})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), r.Path) {
		t.Errorf("edits name paths of this process's view, %s:\n%s", r.Path, text)
	}
	for _, want := range []string{
		"hostPath: /run/nvidia/driver/dev/nvidiactl",
		"hostPath: /run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
		"containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
		"path: " + hook,
		"NVIDIA_VISIBLE_DEVICES=void",
	} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("edits lack %q:\n%s", want, text)
		}
	}
	if bytes.Contains(text, []byte("apply-cuda-memory-limits")) {
		t.Error("edits have the hook that takes limits from the container's environment")
	}
	if nodes := byGPU[devices[2].UUID].DeviceNodes; len(nodes) != 1 || nodes[0].Path != "/dev/nvidia2" {
		t.Errorf("GPU 2 has device nodes %v, want /dev/nvidia2 alone", nodes)
	}
}

func TestFailuresSayWhatIsWrong(t *testing.T) {
	tests := map[string]struct {
		fault   simdriver.Fault
		remove  string
		wantErr string
	}{
		"no-driver":           {remove: "usr", wantErr: "find libnvidia-ml.so.1 under driver root /run/nvidia/driver"},
		"NVML-does-not-start": {fault: simdriver.FailCall("nvmlInit_v2", 9), wantErr: "initialise NVML: Driver Not Loaded"},
		"NVML-fails-later":    {fault: simdriver.FailCall("nvmlDeviceGetCount_v2", 999), wantErr: "count GPUs: Unknown Error"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if !ownProcess(t) {
				return
			}
			r := root(t, "t4x4")
			if tc.remove != "" {
				if err := os.RemoveAll(filepath.Join(r.Path, tc.remove)); err != nil {
					t.Fatal(err)
				}
			}
			if tc.fault != "" {
				if err := r.Fault(tc.fault); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := open(r).Devices(); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got error %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func TestOneLostGPUDoesNotHideTheOthers(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	r := root(t, "t4x4")
	if err := r.Fault(simdriver.LoseGPU(1)); err != nil {
		t.Fatal(err)
	}
	devices, skipped, err := open(r).Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 3 || len(skipped) != 1 || !strings.Contains(skipped[0].Error(), "GPU 1: ") {
		t.Errorf("got %d devices, skipped %v; want 3 and GPU 1", len(devices), skipped)
	}
}
