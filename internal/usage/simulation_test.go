package usage

import (
	"math"
	"slices"
	"testing"
	"time"

	"aliquot.dev/aliquot/internal/gpu"
)

// The simulated GPU: one process at a time, in slices, round robin over those with work.
const (
	simStep    = 100 * time.Microsecond
	simSlice   = 2 * time.Millisecond
	simRefresh = 167 * time.Millisecond // of NVML's figures
	simTick    = 500 * time.Millisecond // of the controller
	simBurst   = 50 * time.Millisecond  // that the library lets a share run ahead
	simQueue   = 4                      // kernels that a program has outstanding
)

// program is a share with one process that launches kernels.
type program struct {
	tenant Tenant
	kernel time.Duration               // how long one runs
	wrong  float64                     // what the library estimates, as a part of kernel
	gap    time.Duration               // between the end of one and the launch of the next
	wants  func(at time.Duration) bool // nil: always
	queued []time.Duration             // what is left of each launched kernel
	next   time.Duration               // not to launch before
	tat    time.Duration               // the library's own
	last   Decision                    // what its page says
	ran    []time.Duration             // by step
}

// simulation runs programs on a GPU with the library's limiter in front of it, in a time of its own.
type simulation struct {
	t        *testing.T
	now      time.Duration
	programs []*program
	turn     int           // whose slice it is
	left     time.Duration // of the slice
	blind    bool          // NVML does not answer
	samples  []gpu.Utilization
	since    uint64
	control  *Controller
}

func simulate(t *testing.T, programs ...*program) *simulation {
	s := &simulation{t: t, programs: programs, control: NewController()}
	for i, p := range programs {
		p.tenant.ID, p.tenant.PIDs = string(rune('a'+i)), []int{100 + i}
		if p.wrong == 0 {
			p.wrong = 1
		}
	}
	return s
}

// run goes on until a time.
func (s *simulation) run(until time.Duration) {
	for ; s.now < until; s.now += simStep {
		if s.now%simTick < simStep {
			s.tick()
		}
		for _, p := range s.programs {
			p.launch(s.now)
		}
		s.execute()
		if s.now%simRefresh < simStep {
			s.refresh()
		}
	}
}

func (s *simulation) tick() {
	sample := Sample{Measured: !s.blind}
	for _, p := range s.programs {
		sample.Tenants = append(sample.Tenants, p.tenant)
	}
	for _, u := range s.samples {
		if !s.blind && u.TimeUS > s.since {
			sample.Utilization = append(sample.Utilization, u)
		}
	}
	if !s.blind && len(s.samples) > 0 {
		s.since = s.samples[0].TimeUS
	}
	for i, d := range s.control.Step(s.now, sample) {
		s.programs[i].last = d
	}
}

// launch is a program's CPU side with the library in it.
func (p *program) launch(now time.Duration) {
	if p.wants != nil && !p.wants(now) || now < p.next || len(p.queued) >= simQueue || p.gap > 0 && len(p.queued) > 0 {
		return
	}
	estimate := time.Duration(float64(p.kernel) * p.wrong)
	permille := p.last.CorePermille
	if permille == 0 {
		permille = uint32(p.tenant.CorePercent) * 10
	}
	if permille < 1000 {
		if p.tat-now > simBurst {
			p.tenant.ThrottleNS += uint64(simStep)
			return
		}
		k := p.last.CorrectionPermille
		if k == 0 {
			k = 1000
		}
		p.tat = max(now, p.tat) + estimate*time.Duration(k)/time.Duration(permille)
	}
	p.tenant.Launches++
	p.tenant.ChargedNS += uint64(estimate)
	p.queued = append(p.queued, p.kernel)
}

// execute lets the GPU work for a step.
func (s *simulation) execute() {
	for range s.programs {
		if p := s.programs[s.turn]; s.left > 0 && len(p.queued) > 0 {
			break
		}
		s.turn, s.left = (s.turn+1)%len(s.programs), simSlice
	}
	s.left -= simStep
	for i, p := range s.programs {
		ran := time.Duration(0)
		if i == s.turn && len(p.queued) > 0 {
			ran = simStep
			if p.queued[0] -= simStep; p.queued[0] <= 0 {
				p.queued, p.next = p.queued[1:], s.now+p.gap
			}
		}
		p.ran = append(p.ran, ran)
	}
}

// used is the part of the GPU that a program had between two times, in percent.
func (p *program) used(from, to time.Duration) float64 {
	sum := time.Duration(0)
	for _, ran := range p.ran[max(from/simStep, 0):min(int(to/simStep), len(p.ran))] {
		sum += ran
	}
	return 100 * float64(sum) / float64(to-from)
}

// refresh is NVML's: whole percents of the last second, of the processes that used anything.
func (s *simulation) refresh() {
	s.samples = nil
	for _, p := range s.programs {
		percent := uint32(math.Round(p.used(s.now-sampleWindow, s.now)))
		if percent > 0 {
			s.samples = append(s.samples, gpu.Utilization{PID: p.tenant.PIDs[0], TimeUS: uint64(s.now / time.Microsecond), SMPercent: percent})
		}
	}
}

// between checks what a program had of the GPU, in percent.
func (s *simulation) between(name string, p *program, from, to time.Duration, least, most float64) {
	s.t.Helper()
	if got := p.used(from, to); got < least || got > most {
		s.t.Errorf("%s used %.1f %% from %v to %v, want %g to %g; its page says %+v", name, got, from, to, least, most, p.last)
	}
}

func fixed(percent int) Tenant { return Tenant{CorePercent: percent} }
func burst(percent int) Tenant { return Tenant{CorePercent: percent, Burst: true} }

const seconds = time.Second

func TestWrongEstimatesAreCorrected(t *testing.T) {
	for _, tc := range []struct {
		kernel time.Duration
		wrong  float64
		beside time.Duration
	}{
		{kernel: 200 * time.Microsecond, wrong: 2, beside: 3 * time.Millisecond},
		{kernel: 3 * time.Millisecond, wrong: 1.6, beside: 200 * time.Microsecond},
		{kernel: 3 * time.Millisecond, wrong: 0.6, beside: 30 * time.Millisecond},
		{kernel: 100 * time.Millisecond, wrong: 1.5, beside: 3 * time.Millisecond},
	} {
		a := &program{tenant: fixed(30), kernel: tc.kernel, wrong: tc.wrong}
		b := &program{tenant: fixed(70), kernel: tc.beside, wrong: 1.2}
		s := simulate(t, a, b)
		s.run(70 * seconds)
		s.between("a", a, 40*seconds, 70*seconds, 27.5, 32.5)
		s.between("b", b, 40*seconds, 70*seconds, 65.5, 72.5)
		if want := 1000 / tc.wrong; math.Abs(float64(a.last.CorrectionPermille)-want) > want/8 {
			t.Errorf("%v estimated as %g of that: corrected by %d permille, want about %.0f", tc.kernel, tc.wrong, a.last.CorrectionPermille, want)
		}
	}
}

func TestBurstAloneHasTheGPU(t *testing.T) {
	a := &program{tenant: burst(20), kernel: 3 * time.Millisecond}
	idle := &program{tenant: fixed(80), kernel: time.Millisecond, wants: func(time.Duration) bool { return false }}
	s := simulate(t, a, idle)
	s.run(10 * seconds)
	s.between("a", a, 3*seconds, 10*seconds, 99, 100)
	if a.last.CorePermille != 1000 {
		t.Errorf("its page says %+v", a.last)
	}
}

func TestBorrowedCoresAreGivenBack(t *testing.T) {
	for name, owner := range map[string]Tenant{"fixed": fixed(70), "burst": burst(70)} {
		t.Run(name, func(t *testing.T) {
			a := &program{tenant: burst(30), kernel: 3 * time.Millisecond}
			b := &program{tenant: owner, kernel: 3 * time.Millisecond, wants: func(at time.Duration) bool { return at > 10*seconds && at < 30*seconds }}
			s := simulate(t, a, b)
			s.run(40 * seconds)
			s.between("borrower", a, 5*seconds, 10*seconds, 99, 100)
			s.between("owner that woke at 10s", b, 12*seconds, 30*seconds, 67, 73)
			s.between("borrower", a, 12*seconds, 30*seconds, 27, 33)
			s.between("borrower after the owner fell silent", a, 34*seconds, 40*seconds, 99, 100)
		})
	}
}

// An owner that uses a part of what it has keeps what it wants, and the rest is lent.
func TestIdlePartIsLent(t *testing.T) {
	for _, wrong := range []float64{1, 1.5} {
		a := &program{tenant: burst(30), kernel: 3 * time.Millisecond, wrong: wrong}
		// Alone it would use a fifth of the GPU. Slices of 2 ms beside a program that never stops cost it time at each kernel.
		b := &program{tenant: fixed(70), kernel: 2 * time.Millisecond, gap: 8 * time.Millisecond}
		s := simulate(t, a, b)
		s.run(60 * seconds)
		s.between("borrower", a, 30*seconds, 60*seconds, 55, 85)
		s.between("owner", b, 30*seconds, 60*seconds, 15, 21)
		for at := 30 * seconds; at < 60*seconds; at += 10 * seconds {
			s.between("both", &program{ran: sum(a.ran, b.ran)}, at, at+10*seconds, 75, 100)
		}
	}
}

func sum(a, b []time.Duration) []time.Duration {
	both := slices.Clone(a)
	for i := range both {
		both[i] += b[i]
	}
	return both
}

// It cannot be told from NVML's figures alone whether an owner below its part wants no more or gets no more.
func TestOwnerIsNotSqueezedByBorrowers(t *testing.T) {
	demand := []time.Duration{0, 20 * seconds, 40 * seconds} // when the owner begins to want little, all, little
	a := &program{tenant: burst(20), kernel: 5 * time.Millisecond}
	b := &program{tenant: burst(20), kernel: 500 * time.Microsecond}
	c := &program{tenant: fixed(60), kernel: 2 * time.Millisecond}
	c.wants = func(at time.Duration) bool {
		if at >= demand[1] && at < demand[2] {
			return true
		}
		return at%(20*time.Millisecond) < 2*time.Millisecond
	}
	s := simulate(t, a, b, c)
	s.run(60 * seconds)
	s.between("owner that wants all", c, 22*seconds, 40*seconds, 57, 63)
	s.between("first borrower", a, 22*seconds, 40*seconds, 17, 23)
	s.between("second borrower", b, 22*seconds, 40*seconds, 17, 23)
}

func TestBestEffortHasWhatIsLeft(t *testing.T) {
	a := &program{tenant: fixed(40), kernel: time.Millisecond}
	b := &program{tenant: fixed(0), kernel: 3 * time.Millisecond, wrong: 1.4}
	c := &program{tenant: fixed(0), kernel: 500 * time.Microsecond}
	s := simulate(t, a, b, c)
	s.run(40 * seconds)
	s.between("guaranteed", a, 15*seconds, 40*seconds, 37.5, 42)
	s.between("first best effort", b, 15*seconds, 40*seconds, 27, 33)
	s.between("second best effort", c, 15*seconds, 40*seconds, 27, 33)
	if a.last.CorePermille != 0 || b.last.CorePermille != 300 || c.last.CorePermille != 300 {
		t.Errorf("cores are %d, %d and %d permille, want 0 (as granted), 300 and 300", a.last.CorePermille, b.last.CorePermille, c.last.CorePermille)
	}
}

// Without NVML nothing is corrected, and only who launches nothing lends.
func TestBlindControllerErrsOnTheSafeSide(t *testing.T) {
	a := &program{tenant: burst(30), kernel: 3 * time.Millisecond}
	b := &program{tenant: fixed(70), kernel: 2 * time.Millisecond, gap: 8 * time.Millisecond, wants: func(at time.Duration) bool { return at < 20*seconds }}
	s := simulate(t, a, b)
	s.run(10 * seconds)
	s.blind = true
	s.run(13 * seconds)
	if a.last.CorrectionPermille != 0 || a.last.CorePermille != 300 {
		t.Errorf("beside an active owner the page says %+v, want no correction and 300", a.last)
	}
	s.run(25 * seconds)
	if a.last.CorePermille != 1000 {
		t.Errorf("beside a silent owner the page says %+v, want 1000", a.last)
	}
	s.blind = false
	s.run(35 * seconds)
	if a.last.CorrectionPermille == 0 {
		t.Errorf("NVML answers again and the page says %+v", a.last)
	}
}
