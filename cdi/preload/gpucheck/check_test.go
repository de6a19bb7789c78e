package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/e2e/simdriver"
)

const uuid = "GPU-00000001-aaaa-bbbb-cccc-0123456789ab"

// A machine whose contexts cost nothing.
const hardware = `
driverVersion: 580.95.05
nvmlVersion: 13.580.95.05
cudaVersion: "13.0"
gpus:
- {model: t4, uuid: ` + uuid + `, serial: "1000", pci: {busID: "00000000:01:00.0", deviceID: 515379422}}
`

// simulated makes a simulated driver, lets it be found, and returns a folder with the programs in C.
func simulated(t *testing.T) (programs string) {
	t.Helper()
	hw, err := simdriver.Parse([]byte(hardware))
	if err != nil {
		t.Fatal(err)
	}
	hw.GPUs[0].ContextMiB = 0
	root, err := simdriver.NewRoot(context.Background(), filepath.Join(t.TempDir(), "driver"), hw)
	if errors.Is(err, simdriver.ErrNotRoot) || errors.Is(err, simdriver.ErrNoCompiler) {
		t.Skipf("the simulated driver cannot be made here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", root.LibraryDir())
	programs = t.TempDir()
	if output, err := exec.Command("./build.sh", programs, "c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return programs
}

func share(t *testing.T, memoryMiB uint64) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if _, err := makeShare(dir, uuid, cdi.Quota{MemoryBytes: memoryMiB << 20, CorePercent: 100}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// do runs a program and returns what it printed and its exit status.
func do(t *testing.T, dir, preload, name string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if preload != "" {
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+preload)
	}
	output, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(output), cmd.ProcessState.ExitCode()
}

// The same programs that check a real GPU find nothing wrong on a simulated one, and find it where the library is not
// there. One test, since a process keeps the NVML that it found first.
func TestProgramsOnASimulatedGPU(t *testing.T) {
	programs := simulated(t)
	library := filepath.Join(programs, "libaliquot.so")

	t.Run("gpu", func(t *testing.T) {
		node, done, err := openNode()
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		device, err := firstGPU(node)
		if err != nil || device.UUID != uuid {
			t.Errorf("the first GPU is %q, %v, want %q", device.UUID, err, uuid)
		}
	})
	t.Run("identity", func(t *testing.T) {
		out, code := do(t, t.TempDir(), "", filepath.Join(programs, "identity"))
		if code != 0 || !strings.Contains(out, " 0 different, ") || !strings.HasSuffix(out, " 0 unknown\n") {
			t.Errorf("ended with %d:\n%s", code, out)
		}
	})
	t.Run("wrapped", func(t *testing.T) {
		out, code := do(t, t.TempDir(), library, filepath.Join(programs, "identity"), "libaliquot.so")
		if code != 0 || !regexp.MustCompile(`\d{3,} questions, 0 answers not wrapped`).MatchString(out) {
			t.Errorf("ended with %d:\n%s", code, out)
		}
		out, code = do(t, t.TempDir(), "", filepath.Join(programs, "identity"), "libaliquot.so")
		if code != 1 || !strings.Contains(out, "not wrapped: cuMemAlloc of version 13000") {
			t.Errorf("without the library it ended with %d:\n%s", code, out)
		}
	})
	// It does not measure what it cannot.
	t.Run("spin", func(t *testing.T) {
		for want, args := range map[string][]string{
			"started too late":     {"1", "50", "0", "0", "1"},
			"a kernel of no turns": {"0.001", "50", "0", "1e12", "2e12"},
		} {
			if out, code := do(t, t.TempDir(), "", filepath.Join(programs, "spin"), args...); code != 1 || !strings.Contains(out, want) {
				t.Errorf("%s ended with %d: %s", args, code, out)
			}
		}
	})
	t.Run("memory", func(t *testing.T) {
		out, code := do(t, share(t, 1024), library, filepath.Join(programs, "memory"), "1024")
		if code != 0 || strings.Contains(out, "fail") {
			t.Errorf("ended with %d:\n%s", code, out)
		}
		for _, name := range []string{"total", "exact", "linear", "small", "pitch", "managed", "physical", "array", "ordered", "pool", "mapped", "graph"} {
			if !strings.Contains(out, "pass "+name+": ") {
				t.Errorf("no check named %s:\n%s", name, out)
			}
		}
	})
	t.Run("memory of another quota", func(t *testing.T) {
		for _, has := range []uint64{1022, 1026} {
			out, code := do(t, share(t, has), library, filepath.Join(programs, "memory"), "1024")
			if code != 1 || !strings.Contains(out, "fail exact: ") {
				t.Errorf("with %d MiB of 1024 it ended with %d:\n%s", has, code, out)
			}
		}
	})
}

func TestListedLibraries(t *testing.T) {
	const listing = `2 libs found in cache
	libnvidia-ml.so.1 (libc6,x86-64) => /usr/local/nvidia/lib64/libnvidia-ml.so.1
	libnvidia-ml.so.1 (libc6) => /usr/lib32/libnvidia-ml.so.1
	libnvidia-ml.so.1 (libc6,AArch64) => /opt/lib/libnvidia-ml.so.1
	libnvidia-ml.so (libc6,x86-64) => /usr/lib/libnvidia-ml.so
	notlibnvidia-ml.so.1 (libc6,x86-64) => /no/libnvidia-ml.so.1
`
	if got, want := listedLibraries(listing), []string{"/usr/local/nvidia/lib64", "/opt/lib"}; !slices.Equal(got, want) {
		t.Errorf("listed in %q, want %q", got, want)
	}
}

func TestFindNVML(t *testing.T) {
	first, second, empty := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		if err := os.WriteFile(filepath.Join(dir, libraryName), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(second) // an empty entry is not the working directory
	if got, err := findNVML([]string{"", empty, first, second}); err != nil || got != filepath.Join(first, libraryName) {
		t.Errorf("found %q, %v", got, err)
	}
	if got, err := findNVML([]string{"", empty}); err == nil {
		t.Errorf("found %q where there is none", got)
	}
}
