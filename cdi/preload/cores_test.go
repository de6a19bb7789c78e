package preload_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/simrun"
)

// Offsets in the usage header and the agent page, which TestABI holds to the golden file.
const (
	tatOffset          = 64
	throttleOffset     = 136
	launchesOffset     = 144
	chargedOffset      = 152
	agentTimeOffset    = 16
	kPermilleOffset    = 24
	corePermilleOffset = 40
)

var simrunPrograms = sync.OnceValues(func() (simrun.Programs, error) {
	dir, err := os.MkdirTemp(built.dir, "simrun-")
	if err != nil {
		return simrun.Programs{}, err
	}
	return simrun.Build(context.Background(), dir)
})

// A runner is a container with a share of card 0 and what runs in it.
type runner struct {
	dir   string
	share share
	args  []string
}

// newRunner gives a container of its own a share of card 0's time.
func (m *machine) newRunner(t testing.TB, percent int, policy string, args ...string) runner {
	t.Helper()
	other := &machine{root: m.root, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(other.dir, sharesDir), 0o755); err != nil {
		t.Fatal(err)
	}
	r := runner{dir: other.dir, share: other.newShare(t, 0, "share", 4<<30), args: args}
	r.share.write(t, "quota", fmt.Appendf(nil, "version 1\ngpu %s\nmemory_bytes %d\ncore_percent %d\ncore_policy %s\npriority 0\n", uuid(0), 4<<30, percent, policy))
	return r
}

const (
	runStart  = 3 * time.Second // of the virtual clock; until then a share may be ahead of itself
	runLength = 8 * time.Second
	runTick   = 500 * time.Millisecond
)

// run runs the containers' programs beside each other on the virtual clock, and says what part of the GPU's time each had
// from runStart on, in percent.
func (m *machine) run(t testing.TB, each func(simrun.Tick) error, runners ...runner) []float64 {
	t.Helper()
	programs, err := simrunPrograms()
	if err != nil {
		t.Fatal(err)
	}
	var tenants []simrun.Tenant
	for _, r := range runners {
		tenants = append(tenants, simrun.Tenant{Args: r.args, Dir: r.dir, Preload: []string{built.library}})
	}
	ticks, err := programs.Run(t.Context(), m.root, tenants, runLength, runTick, each)
	if err != nil {
		t.Fatal(err)
	}
	var used []float64
	for i := range runners {
		used = append(used, simrun.Used(ticks, i, runStart, runLength))
	}
	return used
}

// wantUsed compares percents of the GPU's time. A kernel at each end of what is measured is the tolerance.
func wantUsed(t testing.TB, what string, got, want float64) {
	t.Helper()
	if got < want-1.5 || got > want+1.5 {
		t.Errorf("%s: the GPU worked %.1f %% of the time, want %.1f", what, got, want)
	}
}

func (s share) counter(t testing.TB, offset int64) uint64 {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, "usage"))
	if err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(data[offset:])
}

// setCounter writes a counter of the usage header in place.
func (s share) setCounter(t testing.TB, offset int64, value uint64) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(s.dir, "usage"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(binary.NativeEndian.AppendUint64(nil, value), offset); err != nil {
		t.Fatal(err)
	}
}

func TestAShareOfCoresIsHeldByEveryKindOfWork(t *testing.T) {
	for _, test := range []struct {
		name    string
		percent int
		args    []string
	}{
		{"short kernels", 20, []string{"kernel=busy_50us", "launch_us=5"}},
		{"kernels that are waited for", 35, []string{"kernel=busy_500us", "sync=1"}},
		{"long kernels", 60, []string{"kernel=busy_20ms"}},
		{"long and short kernels", 40, []string{"kernel=busy_100us_to_20ms"}},
		{"a graph", 25, []string{"kernel=busy_500us", "graph=10", "sync=1"}},
		{"cooperative", 20, []string{"kernel=busy_500us", "call=cooperative"}},
		{"extensible", 20, []string{"kernel=busy_500us", "call=ex"}},
		{"per-thread stream", 20, []string{"kernel=busy_500us", "call=ptsz"}},
		{"of CUDA 3", 20, []string{"kernel=busy_500us", "call=grid"}},
		{"on several devices", 20, []string{"kernel=busy_100us", "call=multi"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 1)
			r := m.newRunner(t, test.percent, "Fixed", test.args...)
			wantUsed(t, test.name, m.run(t, nil, r)[0], float64(test.percent))
			for name, offset := range map[string]int64{"launches": launchesOffset, "throttle_ns": throttleOffset, "charged_ns": chargedOffset, "tat": tatOffset} {
				if r.share.counter(t, offset) == 0 {
					t.Errorf("%s is 0 after a run", name)
				}
			}
		})
	}
}

// TestKernelsOfMoreThanASecondDoNotPileUp: the first is not through when it is no longer waited for, and the next ones must not pass
// for short.
func TestKernelsOfMoreThanASecondDoNotPileUp(t *testing.T) {
	m := newMachine(t, 1)
	r := m.newRunner(t, 30, "Fixed", "kernel=busy_1500ms", "launch_us=5")
	m.run(t, nil, r)
	if launches := r.share.counter(t, launchesOffset); launches < 2 || launches > 6 {
		t.Errorf("%d were launched in %v, want 2 to 6", launches, runLength)
	}
}

func TestAShareOfAllCoresIsNotHeldBack(t *testing.T) {
	m := newMachine(t, 1)
	r := m.newRunner(t, 100, "Fixed", "kernel=busy_500us")
	wantUsed(t, "all cores", m.run(t, nil, r)[0], 100)
	if waited := r.share.counter(t, throttleOffset); waited != 0 {
		t.Errorf("%d ns were waited", waited)
	}
}

func TestAProgramThatWantsLessThanItsShareIsNotHeldBack(t *testing.T) {
	m := newMachine(t, 1)
	r := m.newRunner(t, 50, "Fixed", "kernel=busy_1ms", "sync=1", "gap_us=3000")
	wantUsed(t, "a quarter", m.run(t, nil, r)[0], 25)
}

func TestProcessesOfOneClaimHaveOneShareOfCores(t *testing.T) {
	m := newMachine(t, 1)
	first := m.newRunner(t, 30, "Fixed", "kernel=busy_400us")
	second := first
	second.args = []string{"kernel=busy_100us", "sync=1"}
	used := m.run(t, nil, first, second)
	wantUsed(t, "both", used[0]+used[1], 30)
	if used[0] < 1 || used[1] < 1 {
		t.Errorf("one process had all of the share: %.1f %% and %.1f %%", used[0], used[1])
	}
}

func TestWhatTheAgentSaysIsHeld(t *testing.T) {
	fresh := func(s share, fields map[int64]uint32) func(simrun.Tick) error {
		return func(now simrun.Tick) error {
			s.setAgentTime(t, now.Clock)
			s.setAgent(t, fields)
			return nil
		}
	}
	for _, test := range []struct {
		name    string
		percent int
		policy  string
		page    map[int64]uint32
		fresh   bool
		want    float64
	}{
		{"a correction", 20, "Fixed", map[int64]uint32{kPermilleOffset: 2000}, true, 10},
		{"a correction that is old", 20, "Fixed", map[int64]uint32{kPermilleOffset: 2000}, false, 20},
		{"a correction out of bounds", 20, "Fixed", map[int64]uint32{kPermilleOffset: 1}, true, 60},
		{"best effort", 0, "Fixed", map[int64]uint32{corePermilleOffset: 150}, false, 15},
		{"best effort before the agent's first word", 0, "Fixed", nil, false, 1},
		{"Burst", 20, "Burst", map[int64]uint32{corePermilleOffset: 700}, true, 70},
		{"Burst that is open", 20, "Burst", map[int64]uint32{corePermilleOffset: 1000}, true, 100},
		{"Burst of an agent that is gone", 20, "Burst", map[int64]uint32{corePermilleOffset: 700}, false, 20},
		{"Fixed does not borrow", 20, "Fixed", map[int64]uint32{corePermilleOffset: 700}, true, 20},
		{"nobody is lent less than his own", 20, "Burst", map[int64]uint32{corePermilleOffset: 100}, true, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 1)
			r := m.newRunner(t, test.percent, test.policy, "kernel=busy_200us")
			r.share.setAgent(t, test.page)
			var each func(simrun.Tick) error
			if test.fresh {
				each = fresh(r.share, test.page)
			}
			wantUsed(t, test.name, m.run(t, each, r)[0], test.want)
		})
	}
}

// TestADebtThatIsGarbageIsForgiven: another process of the claim can write the region.
func TestADebtThatIsGarbageIsForgiven(t *testing.T) {
	for _, tat := range []uint64{1 << 63, 1<<64 - 1, 1} {
		m := newMachine(t, 1)
		r := m.newRunner(t, 20, "Fixed", "kernel=busy_200us")
		r.share.setCounter(t, tatOffset, tat)
		wantUsed(t, fmt.Sprintf("tat %d", tat), m.run(t, nil, r)[0], 20)
	}
}

// TestSharesOfCoresOfOneGPUAddUp: a container with two claims on one GPU has both.
func TestSharesOfCoresOfOneGPUAddUp(t *testing.T) {
	m := newMachine(t, 1)
	r := m.newRunner(t, 20, "Fixed", "kernel=busy_200us")
	second := (&machine{root: m.root, dir: r.dir}).newShare(t, 0, "two", 1<<30)
	second.write(t, "quota", fmt.Appendf(nil, "version 1\ngpu %s\nmemory_bytes %d\ncore_percent 15\ncore_policy Fixed\npriority 0\n", uuid(0), 1<<30))
	wantUsed(t, "20 and 15", m.run(t, nil, r)[0], 35)
}

// TestPeersThatWaitForEachOtherGoOn: kernels of a tensor-parallel pair spin until the other's has begun, and a limit must not keep
// one from starting.
func TestPeersThatWaitForEachOtherGoOn(t *testing.T) {
	m := newMachine(t, 1)
	first := m.newRunner(t, 30, "Fixed", "kernel=meet_300us_2_ring", "sync=1")
	second := m.newRunner(t, 50, "Fixed", "kernel=meet_300us_2_ring", "sync=1")
	used := m.run(t, nil, first, second)
	if used[0] < 5 || used[1] < 5 {
		t.Errorf("the pair came to %.1f %% and %.1f %%", used[0], used[1])
	}
}

// TestACaptureIsNotDisturbed runs in real time: what the library does in one thread's launches, waits included, must leave the
// capture of another thread valid.
func TestACaptureIsNotDisturbed(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "share", 4<<30)
	s.write(t, "quota", fmt.Appendf(nil, "version 1\ngpu %s\nmemory_bytes %d\ncore_percent 30\ncore_policy Fixed\npriority 0\n", uuid(0), 4<<30))
	c := m.startClient(t, compile(t, "capture"), "20000")
	if line, err := c.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%v: %s", err, line)
	}
	// It is ahead of itself by more than it may be, and waits at its first launch.
	s.setCounter(t, tatOffset, monotonic(t)+uint64(3*time.Second))
	if got := c.do(t, "go"); got != "well" {
		t.Errorf("%s: %s", got, c.stderr.String())
	}
	if s.counter(t, throttleOffset) == 0 {
		t.Error("nothing waited: the test shows nothing")
	}
}

func monotonic(t testing.TB) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}
