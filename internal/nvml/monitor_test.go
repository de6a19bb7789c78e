package nvml

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/workload"
	"aliquot.dev/aliquot/internal/gpu"
)

// fakeRoot is a driver root with the NVML of testdata/utilization.c.
func fakeRoot(t *testing.T) *Monitor {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "usr", "lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
		"-o", filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join("testdata", "utilization.c"))
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, output)
	}
	return New(Driver{Root: "/", RootMount: filepath.Join(dir, "..", "..")}).Monitor()
}

// Drivers differ in which of the two calls they answer, and how truly.
func TestUtilizationOfEveryDriver(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	m := fakeRoot(t)
	older := []gpu.Utilization{{PID: 70, TimeUS: 7, SMPercent: 40}, {PID: 80, TimeUS: 8, SMPercent: 50}}
	newer := []gpu.Utilization{{PID: 70, TimeUS: 7, SMPercent: 45}, {PID: 80, TimeUS: 8, SMPercent: 55}}
	for _, tc := range []struct {
		name    string
		since   uint64
		want    []gpu.Utilization
		wantErr string
	}{
		{name: "usual", want: older},
		{name: "usual", since: 7, want: older[1:]},
		{name: "usual", since: 8},
		{name: "old-only", want: older},
		{name: "old-only", since: 8},
		{name: "new-only", want: newer},
		{name: "new-only", since: 7, want: newer[1:]},
		{name: "new-only", since: 8},
		{name: "blackwell", want: newer},
		{name: "mig", wantErr: "read what processes use of GPU mig: "},
	} {
		got, err := m.Utilization(tc.name, tc.since)
		if !matches(err, tc.wantErr) {
			t.Errorf("%s since %d: got error %v, want %q", tc.name, tc.since, err, tc.wantErr)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s since %d (-want +got):\n%s", tc.name, tc.since, diff)
		}
	}
	if m.lib == nil {
		t.Error("NVML was closed because a GPU does not support a call")
	}
}

func TestMonitorOpensNVMLAgainAfterAnError(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	m := fakeRoot(t)
	if _, err := m.Utilization("restarted", 0); err == nil {
		t.Error("no error although the driver was restarted")
	}
	if got, err := m.Utilization("restarted", 0); err != nil || len(got) != 2 {
		t.Errorf("the second time: got %v, error %v", got, err)
	}
	m.Release()
	if m.lib != nil {
		t.Error("NVML is still open after its release")
	}
	if got, err := m.Utilization("usual", 0); err != nil || len(got) != 2 {
		t.Errorf("after a release: got %v, error %v", got, err)
	}
	// A release while a call is under way is done at its end.
	err := m.on("usual", func(nvmllib.Device) error {
		m.Release()
		return nil
	})
	if err != nil || m.lib != nil {
		t.Errorf("after a release during a call: error %v, NVML is open: %t", err, m.lib != nil)
	}
}

func TestProcessesAreThoseOfTheHost(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	r := root(t, "t4x4")
	n := open(r)
	devices, _, err := n.Devices()
	if err != nil {
		t.Fatal(err)
	}
	m := n.Monitor()
	defer m.Release()
	if got, err := m.Processes(devices[0].UUID); err != nil || len(got) > 0 {
		t.Errorf("of an idle GPU: got %v, error %v", got, err)
	}
	pid := allocate(t, r, 64<<20)
	got, err := m.Processes(devices[0].UUID)
	if diff := cmp.Diff([]gpu.Process{{PID: pid, Bytes: 64 << 20}}, got); diff != "" || err != nil {
		t.Errorf("error %v, processes (-want +got):\n%s", err, diff)
	}
	if got, err := m.Processes("GPU-nobody"); err == nil {
		t.Errorf("of an unknown GPU: got %v", got)
	}
	if got, err := m.Processes(devices[0].UUID); err != nil || len(got) != 1 {
		t.Errorf("after an error: got %v, error %v", got, err)
	}
}

// Both of NVML's calls, through the simulated driver and a process that computes.
func TestUtilizationOfABusyProcess(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	r := root(t, "t4x4")
	n := open(r)
	devices, _, err := n.Devices()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "load")
	cmd := exec.CommandContext(t.Context(), "gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", program,
		filepath.Join("testdata", "load.c"), "-L", r.LibraryDir(), "-l:libcuda.so.1")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, output)
	}
	m := n.Monitor()
	defer m.Release()
	if got, err := m.Utilization(devices[0].UUID, 0); err != nil || len(got) > 0 {
		t.Errorf("of an idle GPU: got %v, error %v", got, err)
	}
	load := exec.CommandContext(t.Context(), program)
	load.Env = append(os.Environ(), "LD_LIBRARY_PATH="+r.LibraryDir())
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = load.Process.Kill()
		_ = load.Wait()
	}()
	var last gpu.Utilization
	for last.SMPercent < 99 { // once it has run for a second
		got, err := m.Utilization(devices[0].UUID, last.TimeUS)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			if s.PID != load.Process.Pid || s.TimeUS <= last.TimeUS || s.SMPercent > 100 {
				t.Fatalf("got %+v after %+v, the process is %d", s, last, load.Process.Pid)
			}
			last = s
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("the last sample is %+v", last)
		case <-time.After(20 * time.Millisecond):
		}
	}
	newer, ret := processesUtilizationInfo(devices[0].UUID, 0)
	if ret != nvmllib.SUCCESS || len(newer) != 1 || newer[0].PID != load.Process.Pid || newer[0].SMPercent < 99 {
		t.Errorf("the newer call: %v, %v", newer, ret)
	}
}

// allocate starts a program that takes memory of the first GPU and holds it, and returns its pid.
func allocate(t *testing.T, r *simdriver.Root, bytes int) int {
	t.Helper()
	program, err := workload.Build(t.Context(), t.TempDir(), r.LibraryDir())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--bytes", strconv.Itoa(bytes), "--hold")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+r.LibraryDir())
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if strings.Contains(lines.Text(), `"holding"`) {
			return cmd.Process.Pid
		}
	}
	t.Fatal("the program ended")
	return 0
}

// matches says whether an error has a text in it, or is nil where none is wanted.
func matches(err error, want string) bool {
	if err == nil || want == "" {
		return err == nil && want == ""
	}
	return strings.Contains(err.Error(), want)
}
