package simdriver_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/workload"
)

const (
	mib   = 1 << 20
	block = 2 * mib
)

func load(t *testing.T, name string) simdriver.Hardware {
	t.Helper()
	hw, err := simdriver.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return hw
}

func newRoot(t *testing.T, hw simdriver.Hardware) *simdriver.Root {
	t.Helper()
	root, err := simdriver.NewRoot(t.Context(), t.TempDir(), hw)
	if errors.Is(err, simdriver.ErrNotRoot) || errors.Is(err, simdriver.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func ledger(t *testing.T, root *simdriver.Root) simdriver.Ledger {
	t.Helper()
	l, err := root.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	checkLedger(t, l)
	return l
}

// checkLedger checks what must hold at every moment: the processes add up to
// the containers and the containers to the cards, and no card ever gave out
// more than it has.
func checkLedger(t *testing.T, l simdriver.Ledger) {
	t.Helper()
	for _, gpu := range l.GPUs {
		var processes, containers uint64
		for _, p := range l.Processes {
			processes += p.Used[gpu.UUID]
		}
		for _, c := range l.Containers {
			usage := c.GPUs[gpu.UUID]
			containers += usage.Used
			if usage.Used > usage.Peak || usage.Peak > gpu.Peak {
				t.Errorf("%s: container %+v of card %+v", gpu.UUID, usage, gpu.Usage)
			}
		}
		if gpu.Used != processes || gpu.Used != containers {
			t.Errorf("%s: %d used, its processes %d, its containers %d", gpu.UUID, gpu.Used, processes, containers)
		}
		if gpu.Used > gpu.Peak || gpu.Peak > gpu.Capacity {
			t.Errorf("%s: used %d, peak %d, capacity %d", gpu.UUID, gpu.Used, gpu.Peak, gpu.Capacity)
		}
	}
}

// programs are compiled once for all tests, against a root of their own.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "simdriver-test-")
	if err != nil {
		return "", err
	}
	programsDir = dir
	if err := simdriver.Build(context.Background(), dir); err != nil {
		return dir, err
	}
	if _, err := workload.Build(context.Background(), dir, dir); err != nil {
		return dir, err
	}
	for _, program := range []string{"cuda_check", "compute_check", "capture_check", "mig_check"} {
		output, err := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror",
			"-I", "native", "-o", filepath.Join(dir, program), "testdata/"+program+".c",
			"-L", dir, "-l:libcuda.so.1", "-pthread", "-ldl").CombinedOutput()
		if err != nil {
			return dir, errors.New(string(output))
		}
	}
	return dir, nil
})

var programsDir string // "" when no test needed them

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(programsDir)
	os.Exit(code)
}

// command runs one of the programs against a root.
func command(t *testing.T, root *simdriver.Root, program string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, program), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+root.LibraryDir())
	return cmd
}

// check runs one case of testdata/cuda_check.c and returns what it printed.
func check(t *testing.T, root *simdriver.Root, name string) string {
	t.Helper()
	return checkWith(t, root, "cuda_check", name)
}

// checkWith runs one case of another program of checks.
func checkWith(t *testing.T, root *simdriver.Root, program, name string) string {
	t.Helper()
	output, err := command(t, root, program, name).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, output)
	}
	return string(output)
}

const childVariable = "SIMDRIVER_TEST_CHILD"

// ownProcess runs the calling test in a process of its own, in which it says
// true. Go's NVML bindings bind each function once, to the first library that a
// process loads, so no two roots can be looked at from one process.
func ownProcess(t *testing.T, prepare ...func(*exec.Cmd)) bool {
	t.Helper()
	if os.Getenv(childVariable) == t.Name() {
		return true
	}
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+part+"$")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+strings.Join(pattern, "/"), "-test.v")
	cmd.Env = append(os.Environ(), childVariable+"="+t.Name())
	for _, f := range prepare {
		f(cmd)
	}
	output, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in its own process: %v\n%s", err, output)
	case strings.Contains(string(output), "--- SKIP"):
		t.Skipf("in its own process:\n%s", output)
	case !strings.Contains(string(output), "--- PASS"):
		t.Errorf("in its own process nothing ran:\n%s", output)
	}
	return false
}
