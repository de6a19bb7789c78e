package usage

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/gpu"
)

var update = flag.Bool("update", false, "rewrite golden files")

const (
	gpuA = "GPU-4c8f1a20-6d3b-4e52-8f0a-1b7d90c5a100"
	gpuB = "GPU-4c8f1a20-6d3b-4e52-8f0a-1b7d90c5a101"
)

// abi is where preload/abi.h has its fields.
func abi(t testing.TB, name string) int {
	t.Helper()
	text, err := os.ReadFile("../../cdi/preload/testdata/abi.golden")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			at, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
	}
	t.Fatalf("%s is not in abi.golden", name)
	return 0
}

// poke writes a word of a share's file, as the library would.
func poke(t testing.TB, path string, at int, value uint64, size int) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], value)
	if _, err := file.WriteAt(word[:size], int64(at)); err != nil {
		t.Fatal(err)
	}
}

// node is where shares have their files.
type node struct {
	t      testing.TB
	layout cdi.Layout
}

func newNode(t testing.TB) node {
	return node{t: t, layout: cdi.Layout{SpecDir: filepath.Join(t.TempDir(), "cdi"), SharesDir: filepath.Join(t.TempDir(), "shares"), Library: "/l", PreloadList: "/p"}}
}

// share makes the files of a share, as prepare does.
func (n node) share(claim, uuid string, cores int, policy string) Share {
	n.t.Helper()
	device := cdi.Device{Request: "gpu", ID: claim + "-share", Edits: specs.ContainerEdits{}, Quota: &cdi.Quota{
		GPU: uuid, MemoryBytes: 1 << 30, CorePercent: cores, CorePolicy: policy, ContextMiB: 512,
	}}
	store, err := cdi.NewStore(n.layout)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := store.WriteShares(cdi.Claim{UID: claim, Devices: []cdi.Device{device}}); err != nil {
		n.t.Fatal(err)
	}
	return Share{
		Claim: "default/" + claim, Request: "gpu", GPU: uuid, Model: "NVIDIA H100", Dir: n.layout.ShareDir(claim, device),
		MemoryBytes: 1 << 30, CorePercent: cores, Burst: policy == "Burst",
	}
}

// page is one number of a share's agent page.
func (s Share) page(t testing.TB, field string) uint64 {
	t.Helper()
	return s.pageAt(t, abi(t, "aq_agent."+field), 4)
}

func (s Share) overhead(t testing.TB, slot int) uint64 {
	t.Helper()
	return s.pageAt(t, abi(t, "aq_agent.slot_overhead_mib")+4*slot, 4)
}

func (s Share) pageAt(t testing.TB, at, size int) uint64 {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	var word [8]byte
	copy(word[:size], content[at:])
	return binary.NativeEndian.Uint64(word[:])
}

func (s Share) pokeHeader(t testing.TB, field string, value uint64) {
	t.Helper()
	poke(t, filepath.Join(s.Dir, "usage"), abi(t, "aq_usage_header."+field), value, 8)
}

// charge is what a slot's process is charged, in MiB.
type charge struct{ generation, used, pending, context uint64 }

func (s Share) pokeSlot(t testing.TB, slot int, c charge) {
	t.Helper()
	path, at := filepath.Join(s.Dir, "usage"), abi(t, "AQ_HEADER_SIZE")+slot*abi(t, "AQ_SLOT_SIZE")
	poke(t, path, at+abi(t, "aq_usage_slot.charge"), c.generation<<44|c.pending<<22|c.used, 8)
	poke(t, path, at+abi(t, "aq_usage_slot.ctx"), c.context<<20, 8)
	poke(t, path, abi(t, "aq_usage_header.hi"), 8, 4)
}

// holderVariable makes TestHoldSlots a process of some shares.
const holderVariable = "ALIQUOT_TEST_HOLD"

// TestHoldSlots locks slot 0 of each region that it is told, says so, and ends with its input.
func TestHoldSlots(t *testing.T) {
	dirs := os.Getenv(holderVariable)
	if dirs == "" {
		t.Skip("it is the other process of other tests")
	}
	for _, dir := range strings.Fields(dirs) {
		fd, err := unix.Open(filepath.Join(dir, "usage"), unix.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(abi(t, "AQ_LOCK_BASE")), Len: 1}
		if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lock); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = os.Stderr.WriteString("locked\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// holder starts a process that owns slot 0 of each of the shares, and returns its pid and what kills it.
func holder(t testing.TB, shares ...Share) (int, func()) {
	t.Helper()
	var dirs []string
	for _, s := range shares {
		dirs = append(dirs, s.Dir)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHoldSlots$")
	cmd.Env = append(os.Environ(), holderVariable+"="+strings.Join(dirs, " "))
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	if line, err := bufio.NewReader(stderr).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the holder says %q, %v", line, err)
	}
	return cmd.Process.Pid, kill
}

// fakeNVML answers as it is told.
type fakeNVML struct {
	mu          sync.Mutex
	processes   map[string][]gpu.Process
	utilization map[string][]gpu.Utilization
	since       []uint64
	err         map[string]error         // of Utilization
	during      func()                   // while processes are listed
	hang        map[string]chan struct{} // until it is closed
	asked       map[string]int
	released    int
}

func newNVML() *fakeNVML {
	return &fakeNVML{processes: map[string][]gpu.Process{}, utilization: map[string][]gpu.Utilization{}, err: map[string]error{}, hang: map[string]chan struct{}{}, asked: map[string]int{}}
}

func (f *fakeNVML) Processes(uuid string) ([]gpu.Process, error) {
	f.mu.Lock()
	hang, during := f.hang[uuid], f.during
	f.asked[uuid]++
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if during != nil {
		during()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.processes[uuid], nil
}

func (f *fakeNVML) Utilization(uuid string, since uint64) ([]gpu.Utilization, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = append(f.since, since)
	return f.utilization[uuid], f.err[uuid]
}

func (f *fakeNVML) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released++
}

// quiet is a context whose logger says nothing.
func quiet(t testing.TB) context.Context {
	return klog.NewContext(t.Context(), klog.Logger{})
}

// looping is a loop that a test moves on by hand.
type looping struct {
	*Loop
	nvml  *fakeNVML
	notes []string
}

func newLoop(t testing.TB, shares ...Share) *looping {
	t.Helper()
	l := &looping{nvml: newNVML()}
	l.Loop = New(Config{Hardware: l.nvml, Degraded: func(note string) { l.notes = append(l.notes, note) }})
	l.Follow(shares)
	t.Cleanup(l.close)
	return l
}
