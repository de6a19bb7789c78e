package workload_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/workload"
)

const (
	mib   = 1 << 20
	block = 2 * mib
)

// setup gives a driver root of one T4 and the program.
func setup(t *testing.T) (*simdriver.Root, string) {
	t.Helper()
	hw, err := simdriver.Load("odd-memory")
	if err != nil {
		t.Fatal(err)
	}
	root, err := simdriver.NewRoot(t.Context(), t.TempDir(), hw)
	if errors.Is(err, simdriver.ErrNotRoot) || errors.Is(err, simdriver.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err := workload.Build(t.Context(), t.TempDir(), root.LibraryDir())
	if err != nil {
		t.Fatal(err)
	}
	return root, program
}

func command(t *testing.T, root *simdriver.Root, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+root.LibraryDir())
	cmd.Stderr = os.Stderr
	return cmd
}

func run(t *testing.T, root *simdriver.Root, program string, args ...string) []workload.Event {
	t.Helper()
	output, err := command(t, root, program, args...).Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, output)
	}
	events, err := workload.Events(output)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func capacity(root *simdriver.Root) uint64 {
	memory := root.Hardware.GPUs[0].Memory
	return (memory.Total - memory.Reserved) / block * block
}

func TestEveryAPIMeetsTheCapacityToTheBlock(t *testing.T) {
	root, program := setup(t)
	for _, api := range []string{"alloc", "async", "vmm", "managed", "pitch"} {
		t.Run(api, func(t *testing.T) {
			events := run(t, root, program, "--api", api)
			gpu := root.Hardware.GPUs[0]
			device := workload.Select(events, "device")
			if len(device) != 1 || device[0].UUID != gpu.UUID || device[0].Name != gpu.Name ||
				device[0].Total != gpu.Memory.Total-gpu.Memory.Reserved || device[0].MemFree != device[0].Total {
				t.Errorf("device lines %+v do not describe %+v", device, gpu)
			}
			got := workload.Select(events, "allocated")
			if len(got) != 1 || got[0].Bytes != capacity(root) || got[0].Result != "CUDA_ERROR_OUT_OF_MEMORY" {
				t.Errorf("got %+v, want %d bytes and then a refusal", got, capacity(root))
			}
			ledger, err := root.Ledger()
			if err != nil {
				t.Fatal(err)
			}
			want := simdriver.Usage{Used: 0, Peak: capacity(root)}
			if diff := cmp.Diff(want, ledger.GPUs[0].Usage); diff != "" {
				t.Errorf("ledger afterwards (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBytesTakesThatAndNoMore(t *testing.T) {
	root, program := setup(t)
	got := workload.Select(run(t, root, program, "--bytes", "104857600"), "allocated")
	if len(got) != 1 || got[0].Bytes != 100*mib || got[0].Result != "CUDA_SUCCESS" {
		t.Errorf("got %+v", got)
	}
}

// Processes that race for one card get all of it and never more.
func TestProcessesShareTheCardExactly(t *testing.T) {
	root, program := setup(t)
	cmd := command(t, root, program, "--processes", "6", "--step", "67108864", "--hold")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var output []byte
	lines := bufio.NewScanner(stdout)
	for holding := 0; holding < 6 && lines.Scan(); {
		output = append(append(output, lines.Bytes()...), '\n')
		events, err := workload.Events(lines.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		holding += len(workload.Select(events, "holding"))
	}
	events, err := workload.Events(output)
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, event := range workload.Select(events, "allocated") {
		sum += event.Bytes
	}
	if sum != capacity(root) {
		t.Errorf("six processes hold %d bytes, want %d", sum, capacity(root))
	}
	ledger, err := root.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	want := simdriver.Usage{Used: sum, Peak: sum}
	if diff := cmp.Diff(want, ledger.GPUs[0].Usage); diff != "" {
		t.Errorf("ledger while they hold (-want +got):\n%s", diff)
	}
	if len(ledger.Processes) != 6 {
		t.Errorf("ledger knows %d processes, want 6", len(ledger.Processes))
	}

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("told to end: %v", err)
	}
	if ledger, err = root.Ledger(); err != nil || ledger.GPUs[0].Used != 0 {
		t.Errorf("ledger afterwards: %+v, %v", ledger.GPUs, err)
	}
}

func TestExitTellsWhetherItGotWhatItExpected(t *testing.T) {
	root, program := setup(t)
	all := capacity(root)
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"--whole", "--least", fmt.Sprint(all), "--most", fmt.Sprint(all)}, 0},
		{[]string{"--least", fmt.Sprint(all + 1)}, workload.Unexpected},
		{[]string{"--most", fmt.Sprint(all - 1)}, workload.Unexpected},
		{[]string{"--bytes", fmt.Sprint(all - block), "--whole"}, workload.Unexpected},
	} {
		cmd := command(t, root, program, c.args...)
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != c.code {
			t.Errorf("%v: %v, want exit status %d", c.args, err, c.code)
		}
	}
}

func TestWrongUseIsRefused(t *testing.T) {
	root, program := setup(t)
	for _, args := range [][]string{{"--api", "texture"}, {"--bytes", "0"}, {"--step", "x"}, {"stray"}, {"--processes", "1000"}} {
		var exit *exec.ExitError
		cmd := command(t, root, program, args...)
		cmd.Stderr = nil
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("%v: %v, want exit status 2", args, err)
		}
	}
}
