package simdriver_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/workload"
)

// actor is a process of testdata/cuda_check.c that goes on until it is killed.
type actor struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.Writer
	stdout *bufio.Reader
}

func startActor(t *testing.T, root *simdriver.Root, name string) *actor {
	t.Helper()
	return start(t, name, command(t, root, "cuda_check", name))
}

// startElsewhere starts one that obeys in what the ledger takes for another
// container: under another host name.
func startElsewhere(t *testing.T, root *simdriver.Root, hostname string) *actor {
	t.Helper()
	cmd := command(t, root, "cuda_check", "obey")
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	cmd.Args = []string{unshare, "--uts", "sh", "-c", `hostname "$1" && exec "$0" obey`, cmd.Path, hostname}
	cmd.Path = unshare
	return start(t, "obey", cmd)
}

func start(t *testing.T, name string, cmd *exec.Cmd) *actor {
	t.Helper()
	a := &actor{t: t, cmd: cmd}
	stdin, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.stdin, a.stdout = stdin, bufio.NewReader(stdout)
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.cmd.Process.Kill(); a.cmd.Wait() })
	if line := a.line(); line != "ready" {
		t.Fatalf("%s says %q", name, line)
	}
	return a
}

func (a *actor) line() string {
	a.t.Helper()
	line, err := a.stdout.ReadString('\n')
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// allocate tells an "obey" to take memory and gives the CUresult.
func (a *actor) allocate(bytes uint64) string {
	a.t.Helper()
	fmt.Fprintln(a.stdin, bytes)
	return a.line()
}

func (a *actor) kill() {
	a.t.Helper()
	if err := a.cmd.Process.Kill(); err != nil {
		a.t.Errorf("a process ended by itself: %v", err)
	}
	a.cmd.Wait()
}

// What a dead process held must neither stand in the way of the living nor
// count with what they take.
func TestLedgerForgetsTheDeadBeforeItCounts(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	capacity := ledger(t, root).GPUs[0].Capacity
	living := startActor(t, root, "obey")
	dead := startActor(t, root, "obey")
	if got := dead.allocate(1 << 30); got != "0" {
		t.Fatal(got)
	}
	dead.kill()
	if got := living.allocate(1 << 30); got != "0" {
		t.Fatal(got)
	}
	if got, want := ledger(t, root).GPUs[0].Usage, (simdriver.Usage{Used: 1 << 30, Peak: 1 << 30}); got != want {
		t.Errorf("one after the other: %+v, want %+v", got, want)
	}
	// The container was at 1 GiB before and may be again, the card was not.
	living.kill()
	dead = startElsewhere(t, root, "elsewhere")
	if got := dead.allocate(512 * mib); got != "0" {
		t.Fatal(got)
	}
	living = startActor(t, root, "obey")
	dead.kill()
	if got := living.allocate(1 << 30); got != "0" {
		t.Fatal(got)
	}
	if got, want := ledger(t, root).GPUs[0].Usage, (simdriver.Usage{Used: 1 << 30, Peak: 1 << 30}); got != want {
		t.Errorf("one elsewhere, then one here: %+v, want %+v", got, want)
	}

	dead = startActor(t, root, "obey")
	if got := dead.allocate(capacity - 1<<30); got != "0" {
		t.Fatal(got)
	}
	if got := living.allocate(block); got != "2" {
		t.Errorf("of a full card: %s, want 2 (out of memory)", got)
	}
	dead.kill()
	if got := living.allocate(capacity - 1<<30); got != "0" {
		t.Errorf("what the dead had: %s", got)
	}
	living.kill()

	// The card was full before, the container never had more than 512 MiB.
	living, dead = startElsewhere(t, root, "elsewhere"), startElsewhere(t, root, "elsewhere")
	if got := dead.allocate(512 * mib); got != "0" {
		t.Fatal(got)
	}
	dead.kill()
	if got := living.allocate(512 * mib); got != "0" {
		t.Fatal(got)
	}
	got := ledger(t, root).Container("elsewhere")[root.Hardware.GPUs[0].UUID]
	if want := (simdriver.Usage{Used: 512 * mib, Peak: 512 * mib}); got != want {
		t.Errorf("of one container: %+v, want %+v", got, want)
	}
}

func TestLedgerInAProcessWithBothLibraries(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	startActor(t, root, "beside nvml")
	if l := ledger(t, root); l.GPUs[0].Used != 10*mib || len(l.Processes) != 1 {
		t.Errorf("a process that lives and holds 10 MiB: %+v", l)
	}
}

// The same at every step of an update, one by one.
func TestLedgerIsRepairedAfterDeathAtEachStep(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	program := filepath.Join(t.TempDir(), "ledger_check")
	output, err := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-I", "native",
		"-o", program, "testdata/ledger_check.c", "native/root.c", "native/hardware.c", "native/process.c", "-pthread").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var sources []byte
	for _, name := range []string{"native/ledger.c", "native/grant.c"} {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, source...)
	}
	steps := regexp.MustCompile(`LEDGER_STEP\("(.*)"\)`).FindAllStringSubmatch(string(sources), -1)
	if len(steps) < 12 {
		t.Fatalf("only %d steps in the ledger", len(steps))
	}
	for _, step := range steps {
		t.Run(step[1], func(t *testing.T) {
			if output, err := exec.CommandContext(t.Context(), program, root.Path, step[1]).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
			if l := ledger(t, root); l.GPUs[0].Used != 0 || len(l.Processes) != 0 {
				t.Errorf("afterwards: %+v", l)
			}
		})
	}
}

// Whenever a process is killed, its memory comes back and the accounts of all
// others stay right.
func TestLedgerSurvivesSIGKILLAtAnyInstruction(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	var running []*actor
	for range 4 {
		running = append(running, startActor(t, root, "churn"))
	}
	for i := range 40 {
		at := i % len(running)
		running[at].kill()
		if l := ledger(t, root); len(l.Processes) != len(running)-1 {
			t.Fatalf("after kill %d the ledger knows %d processes", i, len(l.Processes))
		}
		running[at] = startActor(t, root, "churn")
	}
	for _, a := range running {
		a.kill()
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
