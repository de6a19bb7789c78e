package usage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/internal/gpu"
)

func TestOverheadIsWhatNVMLSaysBeyondTheAllocations(t *testing.T) {
	for name, tc := range map[string]struct {
		charged charge
		actual  uint64 // MiB, by NVML
		want    uint64
	}{
		"context at its reserve":     {charge{generation: 0x301, used: 712, context: 512}, 500, 300},
		"context as measured":        {charge{generation: 0x301, used: 500, context: 300}, 500, 300},
		"no reserve":                 {charge{generation: 1, used: 200}, 500, 300},
		"more than the share":        {charge{generation: 1, used: 1000, context: 100}, 2000, 1100},
		"nothing beyond":             {charge{generation: 1, used: 200}, 200, 0},
		"a context that costs 0":     {charge{generation: 1, used: 712, context: 512}, 200, 1},
		"less than was charged":      {charge{generation: 1, used: 200}, 100, 0},
		"context larger than charge": {charge{generation: 1, used: 10, context: 4 << 20}, 100, 100},
		"pending":                    {charge{generation: 1, used: 200, pending: 1}, 500, 0},
		"NVML does not know it":      {charge{generation: 1, used: 200}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			share := newNode(t).share("claim", gpuA, 0, "Fixed")
			l := newLoop(t, share)
			pid, _ := holder(t, share)
			share.pokeSlot(t, 0, tc.charged)
			if tc.actual > 0 {
				l.nvml.processes[gpuA] = []gpu.Process{{PID: pid, Bytes: tc.actual << 20}, {PID: 1, Bytes: 7 << 30}}
			}
			l.look(quiet(t), 0)
			if got := share.overhead(t, 0); got != tc.want {
				t.Errorf("overhead is %d MiB, want %d", got, tc.want)
			}
			generation := share.pageAt(t, abi(t, "aq_agent.slot_generation"), 1)
			if generation != tc.charged.generation&0xff {
				t.Errorf("it is about generation %d, want %d", generation, tc.charged.generation&0xff)
			}
			if got := share.pageAt(t, abi(t, "aq_agent.actual_bytes"), 8); got != tc.actual<<20 {
				t.Errorf("actual bytes are %d, want %d", got, tc.actual<<20)
			}
		})
	}
}

// What changes while NVML is asked cannot be compared with its answer; what was known stays.
func TestOverheadOfAMovingProcessIsNotTaken(t *testing.T) {
	share := newNode(t).share("claim", gpuA, 0, "Fixed")
	l := newLoop(t, share)
	pid, kill := holder(t, share)
	l.nvml.processes[gpuA] = []gpu.Process{{PID: pid, Bytes: 500 << 20}}
	for name, during := range map[string]charge{
		"allocating": {generation: 1, used: 300}, "pending": {generation: 1, used: 200, pending: 100}, "context": {generation: 1, used: 200, context: 100},
	} {
		share.pokeSlot(t, 0, charge{generation: 1, used: 200})
		l.nvml.during = nil
		l.look(quiet(t), 0)
		l.nvml.during = func() { share.pokeSlot(t, 0, during) }
		l.nvml.processes[gpuA][0].Bytes = 900 << 20
		l.look(quiet(t), 0)
		if got := share.overhead(t, 0); got != 300 {
			t.Errorf("%s: overhead is %d MiB, want 300 as it was", name, got)
		}
		l.nvml.processes[gpuA][0].Bytes = 500 << 20
	}
	// The next process has none until it is measured itself.
	l.nvml.during = nil
	share.pokeSlot(t, 0, charge{generation: 2, used: 200, pending: 200})
	l.look(quiet(t), 0)
	if got := share.overhead(t, 0); got != 0 {
		t.Errorf("another generation has an overhead of %d MiB", got)
	}
	share.pokeSlot(t, 0, charge{generation: 2, used: 200})
	l.look(quiet(t), 0)
	if got := share.overhead(t, 0); got != 300 {
		t.Errorf("once it is measured its overhead is %d MiB, want 300", got)
	}
	kill()
	l.look(quiet(t), 0)
	if got, actual := share.overhead(t, 0), l.Shares()[0].ActualBytes; got != 0 || actual != 0 {
		t.Errorf("a dead process has an overhead of %d MiB and the share %d bytes", got, actual)
	}
}

// A container may hold two shares of one GPU; its process is charged in both.
func TestProcessOfTwoSharesIsCountedOnce(t *testing.T) {
	n := newNode(t)
	a, b := n.share("a", gpuA, 20, "Fixed"), n.share("b", gpuA, 30, "Fixed")
	l := newLoop(t, a, b)
	pid, _ := holder(t, a, b)
	a.pokeSlot(t, 0, charge{generation: 1, used: 100})
	b.pokeSlot(t, 0, charge{generation: 1, used: 712, context: 512})
	l.nvml.processes[gpuA] = []gpu.Process{{PID: pid, Bytes: 600 << 20}}
	l.look(quiet(t), 0)
	if a.overhead(t, 0) != 0 || b.overhead(t, 0) != 300 {
		t.Errorf("overheads are %d and %d MiB, want 0 and 300, where the context is", a.overhead(t, 0), b.overhead(t, 0))
	}
	seen := l.Shares()
	if seen[0].ActualBytes != 100<<20 || seen[1].ActualBytes != 500<<20 {
		t.Errorf("they hold %d and %d MiB, want 100 and 500", seen[0].ActualBytes>>20, seen[1].ActualBytes>>20)
	}
}

func TestContextsAreLearnt(t *testing.T) {
	n := newNode(t)
	a, b := n.share("a", gpuA, 0, "Fixed"), n.share("b", gpuB, 0, "Fixed")
	l := newLoop(t, a, b)
	first, _ := holder(t, a)
	second, _ := holder(t, b)
	a.pokeSlot(t, 0, charge{generation: 1, used: 512, context: 512})
	b.pokeSlot(t, 0, charge{generation: 1, used: 512, context: 512})
	look := func(mibA, mibB uint64) (uint32, bool) {
		l.nvml.processes[gpuA] = []gpu.Process{{PID: first, Bytes: mibA << 20}}
		l.nvml.processes[gpuB] = []gpu.Process{{PID: second, Bytes: mibB << 20}}
		l.look(quiet(t), 0)
		return l.ContextMiB("NVIDIA H100")
	}
	for _, mib := range []uint64{100, 200, 300, 300} { // as the context is made
		if got, ok := look(mib, mib); ok {
			t.Errorf("%d MiB are believed while it still grows, with %d", got, mib)
		}
	}
	if got, ok := look(300, 450); !ok || got != 300 {
		t.Errorf("a context costs %d MiB, %t; want 300", got, ok)
	}
	for range 3 {
		look(800, 1) // one loads code, one lies
	}
	if got, ok := l.ContextMiB("NVIDIA H100"); !ok || got != 300 {
		t.Errorf("a context costs %d MiB, %t; want 300 still", got, ok)
	}
	if _, ok := l.ContextMiB("NVIDIA T4"); ok {
		t.Error("a context is said to have been measured on another model")
	}
}

// runs makes NVML say what a process used in the last second.
func (l *looping) runs(uuid string, pid int, percent uint32, at time.Duration) {
	l.nvml.utilization[uuid] = append(l.nvml.utilization[uuid][:0:0], gpu.Utilization{PID: pid, TimeUS: uint64((at + time.Hour) / time.Microsecond), SMPercent: percent})
}

func TestPagesSayWhatWasMeasured(t *testing.T) {
	n := newNode(t)
	a, b, c := n.share("a", gpuA, 30, "Fixed"), n.share("b", gpuA, 0, "Fixed"), n.share("c", gpuA, 0, "Fixed")
	l := newLoop(t, a, b, c)
	pid, _ := holder(t, a)
	a.pokeSlot(t, 0, charge{generation: 1, used: 100})
	for at := time.Duration(0); at <= 10*time.Second; at += 500 * time.Millisecond {
		// It is charged a quarter of what it uses.
		a.pokeHeader(t, "launches", uint64(at/time.Millisecond))
		a.pokeHeader(t, "charged_ns", uint64(at/10))
		a.pokeHeader(t, "throttle_ns", 4711)
		l.runs(gpuA, pid, 40, at)
		l.look(quiet(t), at)
	}
	for field, want := range map[string]uint64{"k_permille": 3000, "util_permille": 400, "core_permille": 0, "context_mib": 512} {
		if got := a.page(t, field); got != want {
			t.Errorf("%s is %d, want %d", field, got, want)
		}
	}
	if b.page(t, "core_permille") != 350 || c.page(t, "core_permille") != 350 || b.page(t, "k_permille") != 0 {
		t.Errorf("best effort has %d and %d permille, want 350; k %d", b.page(t, "core_permille"), c.page(t, "core_permille"), b.page(t, "k_permille"))
	}
	if last := l.nvml.since[len(l.nvml.since)-1]; last != uint64((time.Hour+9500*time.Millisecond)/time.Microsecond) {
		t.Errorf("NVML was asked for samples since %d", last)
	}
	want := ShareUsage{
		Share: a, Decision: Decision{BusyPermille: 400, CorrectionPermille: 3000}, UsedBytes: 100 << 20, Launches: 10000, ThrottleNS: 4711,
		Processes: []ProcessUsage{{HostPID: pid, UsedBytes: 100 << 20}},
	}
	if diff := cmp.Diff(want, l.Shares()[0]); diff != "" {
		t.Errorf("share (-want +got):\n%s", diff)
	}
}

// The others' pages follow without waiting for the next tick.
func TestSharesThatComeAndGoAreTold(t *testing.T) {
	n := newNode(t)
	a, b := n.share("a", gpuA, 0, "Fixed"), n.share("b", gpuA, 40, "Fixed")
	nvml := newNVML()
	l := New(Config{Hardware: nvml, Interval: time.Hour})
	ctx, cancel := context.WithCancel(quiet(t))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	waitFor := func(permille uint64) {
		t.Helper()
		for a.page(t, "core_permille") != permille {
			if t.Context().Err() != nil {
				t.Fatalf("page says %d", a.page(t, "core_permille"))
			}
			<-time.After(time.Millisecond)
		}
	}
	l.Follow([]Share{a})
	waitFor(1000)
	l.Follow([]Share{a, b})
	waitFor(600)
	l.Follow([]Share{a})
	waitFor(1000)
	cancel()
	<-ended
	nvml.mu.Lock()
	defer nvml.mu.Unlock()
	if nvml.released == 0 {
		t.Error("it ended and did not let go of the driver")
	}
}

func TestDriverIsReleasedWithTheLastShare(t *testing.T) {
	share := newNode(t).share("a", gpuA, 0, "Fixed")
	l := newLoop(t, share)
	for range 2 {
		l.look(quiet(t), 0)
	}
	if l.nvml.released != 0 {
		t.Error("released although there is a share")
	}
	l.Follow(nil)
	for range 2 {
		l.look(quiet(t), 0)
	}
	if l.nvml.released != 1 || len(l.followed)+len(l.gpus)+len(l.Shares()) != 0 {
		t.Errorf("released %d times; %d shares and %d GPUs are kept", l.nvml.released, len(l.followed), len(l.gpus))
	}
}

// Shares without files are being prepared or unprepared: nothing is wrong. They are taken up again when they come back.
func TestFilesThatComeAndGo(t *testing.T) {
	n := newNode(t)
	share := n.share("a", gpuA, 0, "Fixed")
	l := newLoop(t, share)
	l.look(quiet(t), 0)
	if err := os.RemoveAll(share.Dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.look(quiet(t), 0)
		if l.Shares()[0].Err == nil {
			t.Error("a share without files is said to be well")
		}
	}
	n.share("a", gpuA, 0, "Fixed")
	l.look(quiet(t), 0)
	if got := l.Shares()[0]; got.Err != nil || share.page(t, "core_permille") != 1000 {
		t.Errorf("after it came back: %v, page says %d", got.Err, share.page(t, "core_permille"))
	}
	if len(l.notes) > 0 {
		t.Errorf("told %q", l.notes)
	}
}

// What an admin reads is in testdata/degraded.golden.txt.
func TestDegradationIsToldOnce(t *testing.T) {
	n := newNode(t)
	a, b, c := n.share("a", gpuA, 0, "Fixed"), n.share("b", gpuB, 30, "Fixed"), n.share("c", gpuB, 30, "Fixed")
	l := newLoop(t, a, b, c)
	now := time.Duration(0)
	pass := func(d time.Duration) {
		for until := now + d; now < until; now += 500 * time.Millisecond {
			l.look(quiet(t), now)
		}
	}
	pass(2 * time.Second)
	l.nvml.err[gpuA] = errors.New("read what processes use of GPU " + gpuA + ": Unknown Error")
	pass(time.Second)
	l.nvml.err[gpuA] = nil
	pass(time.Second)
	if len(l.notes) > 0 {
		t.Errorf("a failure that was soon over was told: %q", l.notes)
	}
	l.nvml.err[gpuA] = errors.New("read what processes use of GPU " + gpuA + ": Unknown Error")
	asked := l.nvml.asked[gpuA]
	pass(20 * time.Second)
	if more := l.nvml.asked[gpuA] - asked; more < 5 || more > 12 {
		t.Errorf("NVML was asked %d times in 20 s of failure, want each half second at first and each 5 s later", more)
	}
	if a.page(t, "core_permille") != 1000 {
		t.Errorf("without NVML the page says %d permille", a.page(t, "core_permille"))
	}
	l.nvml.err[gpuA] = nil
	pass(6 * time.Second)
	l.nvml.err[gpuA] = errors.New("read what processes use of GPU " + gpuA + ": Not Supported")
	pass(3 * time.Second)
	// A tenant breaks its region, which harms its own figures alone; its page is still written.
	usage := filepath.Join(b.Dir, "usage")
	if err := os.Truncate(usage, 5); err != nil {
		t.Fatal(err)
	}
	before := b.pageAt(t, abi(t, "aq_agent.seq"), 8)
	pass(time.Second)
	if b.pageAt(t, abi(t, "aq_agent.seq"), 8) == before {
		t.Error("the page of a share with a broken region is not written")
	}
	if err := os.Truncate(filepath.Join(c.Dir, "agent"), 5); err != nil {
		t.Fatal(err)
	}
	pass(time.Second)

	text := strings.ReplaceAll(strings.Join(l.notes, "\n---\n")+"\n", n.layout.SharesDir, "/run/aliquot/shares")
	golden := filepath.Join("testdata", "degraded.golden.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// A GPU whose driver hangs holds up neither the others nor the end.
func TestHangingDriverHoldsUpNobody(t *testing.T) {
	n := newNode(t)
	a, b := n.share("a", gpuA, 0, "Fixed"), n.share("b", gpuB, 0, "Fixed")
	l := newLoop(t, a, b)
	l.config.patience = 200 * time.Millisecond
	hang := make(chan struct{})
	l.nvml.hang[gpuA] = hang
	for now := time.Duration(0); now < 4*time.Second; now += 500 * time.Millisecond {
		l.look(quiet(t), now)
	}
	if b.page(t, "core_permille") != 1000 || a.page(t, "core_permille") != 1000 {
		t.Errorf("pages say %d and %d permille", a.page(t, "core_permille"), b.page(t, "core_permille"))
	}
	l.nvml.mu.Lock()
	if l.nvml.asked[gpuA] != 1 {
		t.Errorf("asked %v times; a second question must not pile up", l.nvml.asked)
	}
	l.nvml.hang[gpuA] = nil
	l.nvml.mu.Unlock()
	if len(l.notes) != 1 || !strings.Contains(l.notes[0], "GPU "+gpuA+": NVML does not answer") {
		t.Errorf("told %q", l.notes)
	}
	close(hang)
	for now := 10 * time.Second; len(l.degraded) > 0; now += 10 * time.Second {
		l.look(quiet(t), now)
	}
}
