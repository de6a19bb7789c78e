package simdriver_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/workload"
)

// startChurn starts a process that takes and gives memory without end, and
// returns once it does.
func startChurn(t *testing.T, root *simdriver.Root) *exec.Cmd {
	t.Helper()
	cmd := command(t, root, "cuda_check", "churn")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("churn did not start: %q, %v", line, err)
	}
	go io.Copy(io.Discard, stdout)
	return cmd
}

// Whenever a process is killed, its memory comes back and the accounts of all
// others stay right.
func TestLedgerSurvivesSIGKILLAtAnyInstruction(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	var running []*exec.Cmd
	for range 4 {
		running = append(running, startChurn(t, root))
	}
	kill := func(cmd *exec.Cmd) {
		if err := cmd.Process.Kill(); err != nil {
			t.Errorf("a process ended by itself: %v", err)
		}
		cmd.Wait()
	}
	for i := range 60 {
		at := i % len(running)
		kill(running[at])
		if l := ledger(t, root); len(l.Processes) != len(running)-1 {
			t.Fatalf("after kill %d the ledger knows %d processes", i, len(l.Processes))
		}
		running[at] = startChurn(t, root)
	}
	for _, cmd := range running {
		kill(cmd)
	}
	if l := ledger(t, root); l.GPUs[0].Used != 0 || len(l.Processes) != 0 {
		t.Errorf("when all are dead: %+v", l)
	}
	// The card is whole again for whoever comes next.
	output, err := command(t, root, workload.Program).Output()
	if err != nil {
		t.Fatal(err)
	}
	events, err := workload.Events(output)
	if err != nil {
		t.Fatal(err)
	}
	got := workload.Select(events, "allocated")
	if want := ledger(t, root).GPUs[0].Capacity; len(got) != 1 || got[0].Bytes != want {
		t.Errorf("afterwards a program got %+v, want %d bytes", got, want)
	}
}

// container runs cuda-alloc as a container runtime would: its own mount, host
// name and pid namespaces, its own file system with the driver's library where
// CDI mounts it, and the nodes of some cards.
type container struct {
	t    *testing.T
	root *simdriver.Root
	name string
	dir  string
}

func newContainer(t *testing.T, root *simdriver.Root, name string, minors ...int) container {
	t.Helper()
	for _, tool := range []string{"unshare", "mount", "chroot", "hostname", "cp"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	c := container{t, root, name, t.TempDir()}
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(c.dir, "usr/lib/x86_64-linux-gnu")
	for _, dir := range []string{lib, "lib64", "dev", "proc", "run/nvidia-sim"} {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(c.dir, dir)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{
		filepath.Join(programs, workload.Program):        "cuda-alloc",
		filepath.Join(root.LibraryDir(), "libcuda.so.1"): "usr/lib/x86_64-linux-gnu/libcuda.so.1",
		"/lib64/ld-linux-x86-64.so.2":                    "lib64/ld-linux-x86-64.so.2",
		"/usr/lib/x86_64-linux-gnu/libc.so.6":            "usr/lib/x86_64-linux-gnu/libc.so.6",
	} {
		if output, err := exec.Command("cp", "-L", from, filepath.Join(c.dir, to)).CombinedOutput(); err != nil {
			t.Skipf("copy %s: %s", from, output)
		}
	}
	for _, minor := range minors {
		node := fmt.Sprintf("dev/nvidia%d", minor)
		if output, err := exec.Command("cp", "-a", filepath.Join(root.Path, node), filepath.Join(c.dir, node)).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %s", node, output)
		}
	}
	return c
}

func (c container) run(args ...string) []workload.Event {
	c.t.Helper()
	script := `hostname "$1" && mount --bind "$2" "$3/run/nvidia-sim" && mount -t proc proc "$3/proc" && dir="$3" && shift 3 && exec chroot "$dir" /cuda-alloc "$@"`
	all := append([]string{"--mount", "--uts", "--pid", "--fork", "sh", "-c", script, "sh", c.name, c.root.StateDir(), c.dir}, args...)
	cmd := exec.CommandContext(c.t.Context(), "unshare", all...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu"}
	output, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("container %s: %v\n%s", c.name, err, output)
	}
	events, err := workload.Events(output)
	if err != nil {
		c.t.Fatal(err)
	}
	return events
}

func TestLedgerTellsContainersApart(t *testing.T) {
	root := newRoot(t, load(t, "t4x4"))
	gpus := root.Hardware.GPUs
	one := newContainer(t, root, "pod-one", 0, 2)
	events := one.run("--device", "all", "--bytes", "1073741824", "--processes", "2")
	if got := len(workload.Select(events, "device")); got != 4 {
		t.Errorf("two processes see %d devices, want 2 each", got)
	}
	newContainer(t, root, "pod-two", 2).run("--bytes", "2147483648")

	l := ledger(t, root)
	if diff := cmp.Diff(map[string]simdriver.Usage{gpus[2].UUID: {Peak: 2 << 30}}, l.Container("pod-two")); diff != "" {
		t.Errorf("pod-two (-want +got):\n%s", diff)
	}
	got := l.Container("pod-one")
	for _, gpu := range []int{0, 2} {
		// Whether the two processes ever held theirs at once is chance.
		if peak := got[gpus[gpu].UUID].Peak; peak != 1<<30 && peak != 2<<30 {
			t.Errorf("pod-one: peak %d on card %d", peak, gpu)
		}
	}
	if _, ok := got[gpus[1].UUID]; ok || len(got) != 2 {
		t.Errorf("pod-one had cards it could not see: %v", got)
	}
}
