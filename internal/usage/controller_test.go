package usage

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/internal/gpu"
)

func TestBestEffort(t *testing.T) {
	for _, tc := range []struct {
		cores []int
		want  uint32
	}{
		{cores: []int{0}, want: 1000},
		{cores: []int{0, 0, 0}, want: 333},
		{cores: []int{30, 0, 40, 0}, want: 150},
		{cores: []int{100, 0}, want: 10},
		{cores: []int{98, 0, 0, 0}, want: 10},
		{cores: []int{60, 60, 0}, want: 10}, // overcommitted, as after a force-deleted pod
	} {
		var tenants []Tenant
		for _, cores := range tc.cores {
			tenants = append(tenants, fixed(cores))
		}
		if got := BestEffort(tenants); got != tc.want {
			t.Errorf("beside %v best effort has %d permille, want %d", tc.cores, got, tc.want)
		}
	}
}

// stepper steps a controller by half seconds.
type stepper struct {
	*Controller
	now time.Duration
}

func (s *stepper) step(sample Sample) []Decision {
	s.now += 500 * time.Millisecond
	return s.Step(s.now, sample)
}

// used is a sample of the last second.
func (s *stepper) used(pid int, percent uint32) gpu.Utilization {
	return gpu.Utilization{PID: pid, TimeUS: uint64(s.now / time.Microsecond), SMPercent: percent}
}

func TestCorrectionNeedsSomethingToCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		launches, chargedMS uint64 // in each half second
		percent             uint32
		pids                []int
		want                uint32
	}{
		"as estimated":      {launches: 100, chargedMS: 200, percent: 40, pids: []int{7}, want: 1000},
		"half as estimated": {launches: 100, chargedMS: 200, percent: 20, pids: []int{7}, want: 500},
		"a hundredth":       {launches: 100, chargedMS: 500, percent: 1, pids: []int{7}, want: 333},
		"ten times":         {launches: 100, chargedMS: 50, percent: 100, pids: []int{7}, want: 3000},
		"never seen to run": {launches: 100, chargedMS: 200, percent: 0, pids: []int{7}, want: 0},
		"by unknown":        {launches: 100, chargedMS: 200, percent: 40, pids: nil, want: 0},
		"by another":        {launches: 100, chargedMS: 200, percent: 40, pids: []int{8}, want: 0},
		"hardly charged":    {launches: 100, chargedMS: 1, percent: 1, pids: []int{7}, want: 0},
		"nothing launched":  {launches: 0, chargedMS: 0, percent: 40, pids: []int{7}, want: 0},
		"in two slots":      {launches: 100, chargedMS: 200, percent: 40, pids: []int{7, 7}, want: 1000},
		"a launch a second": {launches: 1, chargedMS: 400, percent: 80, pids: []int{7}, want: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			s := stepper{Controller: NewController()}
			tenant := Tenant{ID: "a", CorePercent: 50, PIDs: tc.pids}
			var got Decision
			for range 40 {
				tenant.Launches += tc.launches
				tenant.ChargedNS += tc.chargedMS * 1e6
				got = s.step(Sample{Tenants: []Tenant{tenant}, Measured: true, Utilization: []gpu.Utilization{s.used(7, tc.percent)}})[0]
			}
			if diff := int(got.CorrectionPermille) - int(tc.want); diff < -30 || diff > 30 {
				t.Errorf("corrected by %d permille, want about %d", got.CorrectionPermille, tc.want)
			}
		})
	}
}

// An idle spell is no reason to forget what kernels cost; after a minute they may be others.
func TestCorrectionOutlastsAnIdleSpell(t *testing.T) {
	s := stepper{Controller: NewController()}
	tenant := Tenant{ID: "a", CorePercent: 50, PIDs: []int{7}}
	run := func(seconds int, busy bool) uint32 {
		var d Decision
		for range 2 * seconds {
			sample := Sample{Measured: true}
			if busy {
				tenant.Launches += 100
				tenant.ChargedNS += 400e6
				sample.Utilization = []gpu.Utilization{s.used(7, 40)}
			}
			sample.Tenants = []Tenant{tenant}
			d = s.step(sample)[0]
		}
		return d.CorrectionPermille
	}
	if got := run(1, true); got != 0 {
		t.Errorf("after a second: corrected by %d permille, want not yet", got)
	}
	for _, spell := range []int{10, 40} {
		if got := run(10, true); got < 450 || got > 550 {
			t.Errorf("busy: corrected by %d permille, want about 500", got)
		}
		if got := run(spell, false); got < 450 || got > 550 {
			t.Errorf("after %d s of silence: corrected by %d permille, want about 500 still", spell, got)
		}
	}
	if got := run(25, false); got != 0 {
		t.Errorf("after 65 s of silence: corrected by %d permille", got)
	}
}

func TestCorrectionWaitsForEnoughLaunches(t *testing.T) {
	s := stepper{Controller: NewController()}
	tenant := Tenant{ID: "a", CorePercent: 50, PIDs: []int{7}}
	for launches := 1; launches <= 20; launches++ {
		tenant.Launches++
		tenant.ChargedNS += 250e6
		got := s.step(Sample{Tenants: []Tenant{tenant}, Measured: true, Utilization: []gpu.Utilization{s.used(7, 50)}})[0].CorrectionPermille
		if (got != 0) != (launches > firstLaunches) { // the first look has nothing to compare with
			t.Errorf("after %d launches in %v it is corrected by %d permille", launches, s.now, got)
		}
	}
}

func TestFewLongLaunchesAreEnough(t *testing.T) {
	s := stepper{Controller: NewController()}
	tenant := Tenant{ID: "a", CorePercent: 30, PIDs: []int{7}}
	var got uint32
	for range 4 { // the first look has nothing to compare with
		tenant.Launches++
		tenant.ChargedNS += 1e9
		got = s.step(Sample{Tenants: []Tenant{tenant}, Measured: true, Utilization: []gpu.Utilization{s.used(7, 50)}})[0].CorrectionPermille
	}
	if got == 0 {
		t.Errorf("3 launches of a second each are not corrected after %v", s.now)
	}
}

// The window is neither so short that it jumps nor so long that it forgets nothing.
func TestCorrectionIsOfTheLastSeconds(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after int // seconds: of kernels that take half of the estimate, then of such that take as much
		least, most   uint32
	}{
		"1 of 4 seconds":      {before: 20, after: 1, least: 580, most: 700},
		"more than 4 seconds": {before: 40, after: 10, least: 970, most: 1030},
	} {
		s := stepper{Controller: NewController()}
		tenant := Tenant{ID: "a", CorePercent: 50, PIDs: []int{7}}
		var got uint32
		for i := range 2 * (tc.before + tc.after) {
			percent := uint32(20)
			if i >= 2*tc.before {
				percent = 40
			}
			tenant.Launches += 100
			tenant.ChargedNS += 200e6
			got = s.step(Sample{Tenants: []Tenant{tenant}, Measured: true, Utilization: []gpu.Utilization{s.used(7, percent)}})[0].CorrectionPermille
		}
		if got < tc.least || got > tc.most {
			t.Errorf("%s: corrected by %d permille, want %d to %d", name, got, tc.least, tc.most)
		}
	}
}

// What was charged by processes that nobody saw is left out, not taken for estimates that are too high.
func TestUnseenProcessesDoNotCount(t *testing.T) {
	s := stepper{Controller: NewController()}
	tenant := Tenant{ID: "a", CorePercent: 50}
	var got uint32
	for i := range 20 {
		sample := Sample{Measured: true}
		if i >= 10 {
			tenant.PIDs = []int{7}
			sample.Utilization = []gpu.Utilization{s.used(7, 40)}
		}
		tenant.Launches += 100
		tenant.ChargedNS += 200e6
		sample.Tenants = []Tenant{tenant}
		got = s.step(sample)[0].CorrectionPermille
	}
	if got < 900 || got > 1150 {
		t.Errorf("corrected by %d permille, want about 1000", got)
	}
}

func TestBusyEndsWithTheProcess(t *testing.T) {
	s := stepper{Controller: NewController()}
	tenant := Tenant{ID: "a", CorePercent: 50, PIDs: []int{7}}
	busy := func(samples ...gpu.Utilization) uint32 {
		return s.step(Sample{Tenants: []Tenant{tenant}, Measured: true, Utilization: samples})[0].BusyPermille
	}
	if got := busy(s.used(7, 40)); got != 400 {
		t.Errorf("it uses %d permille, want 400", got)
	}
	if got := busy(); got != 400 {
		t.Errorf("with nothing newer from NVML it uses %d permille, want 400 still", got)
	}
	busy()
	if got := busy(); got != 0 {
		t.Errorf("with nothing newer for 1.5 s it uses %d permille", got)
	}
	tenant.PIDs = nil
	if got := busy(s.used(7, 30)); got != 300 {
		t.Errorf("NVML still tells of a process that just ended; it used %d permille, want 300", got)
	}
	for range 6 {
		busy()
	}
	if got := busy(s.used(7, 50)); got != 0 {
		t.Errorf("another process with the pid of one that ended counts: %d permille", got)
	}
}

// act is what a tenant does in a half second.
type act struct {
	launches, waits bool
	percent         uint32 // that NVML has for it
}

// Whose cores are lent to whom. The first tenant is the one whose page is looked at.
func TestLending(t *testing.T) {
	silent, busy20, waits := act{}, act{launches: true, percent: 20}, act{launches: true, waits: true, percent: 30}
	hungry := func(percent uint32) act { return act{launches: true, waits: true, percent: percent} }
	for name, tc := range map[string]struct {
		tenants []Tenant
		acts    [][]act // by tenant; the last goes on
		seconds int
		want    uint32
	}{
		"what nobody was granted":         {[]Tenant{burst(20), fixed(30)}, [][]act{{hungry(70)}, {waits}}, 5, 700},
		"what a silent share has":         {[]Tenant{burst(20), fixed(50), fixed(30)}, [][]act{{hungry(70)}, {silent}, {waits}}, 5, 700},
		"what a silent best effort has":   {[]Tenant{burst(20), fixed(0), fixed(30)}, [][]act{{hungry(70)}, {silent}, {waits}}, 5, 700},
		"all, if the others are silent":   {[]Tenant{burst(20), fixed(50), burst(30)}, [][]act{{hungry(99)}, {silent}, {silent}}, 5, 1000},
		"half of it beside a borrower":    {[]Tenant{burst(20), fixed(60), burst(20)}, [][]act{{hungry(50)}, {silent}, {hungry(50)}}, 5, 500},
		"all of it beside one that lends": {[]Tenant{burst(20), fixed(60), burst(20)}, [][]act{{hungry(90)}, {silent}, {act{launches: true, percent: 5}}}, 10, 900},
		"one that does not want more now": {[]Tenant{burst(20), fixed(60), burst(20)}, [][]act{{act{launches: true, percent: 5}}, {silent}, {hungry(90)}}, 10, 500},
		"nothing of one that waits":       {[]Tenant{burst(30), fixed(70)}, [][]act{{hungry(70)}, {waits}}, 10, 300},
		"waited just now":                 {[]Tenant{burst(30), fixed(70)}, [][]act{{hungry(70)}, append(repeat(waits, 18), busy20, busy20)}, 10, 300},
		"nothing of one that just woke":   {[]Tenant{burst(30), fixed(70)}, [][]act{{hungry(99)}, append(repeat(silent, 18), busy20, busy20)}, 10, 300},
		"the idle part of another":        {[]Tenant{burst(30), fixed(70)}, [][]act{{hungry(70)}, {busy20}}, 10, 750},
		"it grows slowly":                 {[]Tenant{burst(30), fixed(70)}, [][]act{{hungry(70)}, {busy20}}, 3, 450},
		"nothing near its part":           {[]Tenant{burst(30), fixed(70)}, [][]act{{hungry(30)}, {act{launches: true, percent: 66}}}, 10, 300},
		"less when the GPU is crowded":    {[]Tenant{burst(30), fixed(70)}, [][]act{append(repeat(hungry(70), 16), repeat(hungry(80), 4)...), {busy20}}, 10, 328},
		"one with a kernel of seconds":    {[]Tenant{burst(30), fixed(70)}, [][]act{{hungry(30)}, {act{launches: true, percent: 60}, act{percent: 66}}}, 10, 300},
		"a fixed share borrows nothing":   {[]Tenant{fixed(30), fixed(70)}, [][]act{{waits}, {silent}}, 5, 0},
		"best effort borrows nothing":     {[]Tenant{{Burst: true}, fixed(70)}, [][]act{{waits}, {silent}}, 5, 300},
	} {
		t.Run(name, func(t *testing.T) {
			s := stepper{Controller: NewController()}
			tenants := tc.tenants
			var got []Decision
			for step := range 2 * tc.seconds {
				sample := Sample{Measured: true}
				for i := range tenants {
					a := tc.acts[i][min(step, len(tc.acts[i])-1)]
					tenants[i].ID, tenants[i].PIDs = string(rune('a'+i)), []int{10 + i}
					if a.launches {
						tenants[i].Launches += 10
					}
					if a.waits {
						tenants[i].ThrottleNS += 1e6
					}
					if a.percent > 0 {
						sample.Utilization = append(sample.Utilization, s.used(10+i, a.percent))
					}
				}
				sample.Tenants = tenants
				got = s.step(sample)
			}
			if got[0].CorePermille != tc.want {
				t.Errorf("it may use %d permille, want %d", got[0].CorePermille, tc.want)
			}
		})
	}
}

func repeat(a act, times int) []act {
	acts := make([]act, times)
	for i := range acts {
		acts[i] = a
	}
	return acts
}

// A process that holds slots in two shares is divided as it was charged.
func TestProcessOfTwoTenants(t *testing.T) {
	s := stepper{Controller: NewController()}
	a, b := Tenant{ID: "a", CorePercent: 20, PIDs: []int{7}}, Tenant{ID: "b", CorePercent: 20, PIDs: []int{7}}
	var got []Decision
	for range 20 {
		a.Launches, a.ChargedNS = a.Launches+100, a.ChargedNS+150e6
		b.Launches, b.ChargedNS = b.Launches+100, b.ChargedNS+50e6
		got = s.step(Sample{Tenants: []Tenant{a, b}, Measured: true, Utilization: []gpu.Utilization{s.used(7, 40)}})
	}
	want := []Decision{{BusyPermille: 300, CorrectionPermille: 1000}, {BusyPermille: 100, CorrectionPermille: 1000}}
	for i := range got {
		if diff := int(got[i].CorrectionPermille) - 1000; diff < -30 || diff > 30 {
			t.Errorf("tenant %d is corrected by %d permille", i, got[i].CorrectionPermille)
		}
		got[i].CorrectionPermille = 1000
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
}

// What containers and NVML say may be anything, in any order of time; what is decided stays within bounds.
func FuzzController(f *testing.F) {
	f.Add(uint64(1), 50)
	f.Add(uint64(0), 3)
	f.Fuzz(func(t *testing.T, seed uint64, steps int) {
		random := rand.New(rand.NewPCG(seed, 0))
		wild := func() uint64 { return random.Uint64() >> random.IntN(64) }
		control, now := NewController(), time.Duration(0)
		for range min(max(steps, 0), 300) {
			now += time.Duration(random.Int64N(int64(3 * time.Second)))
			sample := Sample{Measured: random.IntN(4) > 0}
			for i := range random.IntN(5) {
				tenant := Tenant{ID: string(rune('a' + i)), CorePercent: random.IntN(101), Burst: random.IntN(2) == 0, Launches: wild(), ChargedNS: wild(), ThrottleNS: wild()}
				for range random.IntN(3) {
					tenant.PIDs = append(tenant.PIDs, random.IntN(6))
				}
				sample.Tenants = append(sample.Tenants, tenant)
			}
			for range random.IntN(5) {
				sample.Utilization = append(sample.Utilization, gpu.Utilization{PID: random.IntN(6), TimeUS: wild(), SMPercent: uint32(wild())})
			}
			decisions := control.Step(now, sample)
			if len(decisions) != len(sample.Tenants) {
				t.Fatalf("%d decisions for %d tenants", len(decisions), len(sample.Tenants))
			}
			for i, d := range decisions {
				told := sample.Tenants[i]
				own := uint32(10 * told.CorePercent)
				switch {
				case d.CorrectionPermille != 0 && (d.CorrectionPermille < correctionMin || d.CorrectionPermille > correctionMax),
					!told.Burst && told.CorePercent > 0 && d.CorePermille != 0,
					told.Burst && told.CorePercent > 0 && (d.CorePermille < own || d.CorePermille > 1000),
					told.CorePercent == 0 && (d.CorePermille < 10 || d.CorePermille > 1000):
					t.Errorf("%+v: decided %+v", told, d)
				}
			}
		}
	})
}
