package usage

import (
	"math"
	"time"

	"aliquot.dev/aliquot/internal/gpu"
)

const (
	wholeGPU      = 1000 // permille
	leastCores    = 10   // permille of the GPU's time that a best-effort share has however little is left
	permilleOfPct = 10
)

// When one share may use what another leaves idle. All of it is given back within about a second: the tick that sees the owner
// launch again takes it away.
const (
	// quietAfter is how long a share launches nothing before all of its cores are lent.
	quietAfter = time.Second
	// settleFor is how long a share that woke lends nothing: NVML's figures are about the last second.
	settleFor = 1500 * time.Millisecond
	// heldFor is how long a share that waited for GPU time counts as one that wants more. One wait takes up to a second, and is
	// counted at its end.
	heldFor = 1500 * time.Millisecond
	// lendMargin, in permille, stays free for an active share that uses less than it may, so that it can grow into it.
	lendMargin = 50.0
	// lendPerSecond, in permille, is how fast an active share's idle part is lent.
	lendPerSecond = 100.0
	// crowded is how much of the GPU's time, in permille, is used when it may be that a share below its part wants more
	// than it gets. What it lends is then halved each lendHalving.
	crowded     = 970.0
	lendHalving = 500 * time.Millisecond
	// busyLeast, in permille, is the least use of the GPU that counts as use.
	busyLeast = 10.0
)

// Tenant is what the controller is told of one share. Its counters come from the share's accounting region, where a
// container can write: what it lies about harms the share itself.
type Tenant struct {
	ID          string // the same in each step
	CorePercent int    // of the GPU's time that it was granted, 0 for best effort
	Burst       bool   // it may use what others leave idle

	Launches   uint64
	ChargedNS  uint64 // GPU time, as the library estimates it
	ThrottleNS uint64 // waited for GPU time

	PIDs []int // its live processes, as the host sees them
}

// Sample is what is known of a GPU at one moment.
type Sample struct {
	Tenants []Tenant
	// Measured says that NVML could be asked. Utilization holds its samples since the last step in which it could; none
	// means that no process used the GPU or that there is nothing new.
	Measured    bool
	Utilization []gpu.Utilization
}

// Decision is what a share's agent page shall say.
type Decision struct {
	BusyPermille       uint32 // of the GPU's time, used by the share now
	CorrectionPermille uint32 // for what the library estimates; 0: not measured
	CorePermille       uint32 // of the GPU's time that it may use now; 0: what it was granted
}

// Controller decides how much of one GPU's time each of its shares may use now. It knows no clock, hardware or file: it
// is stepped, every half second or so, and each step gives all that it is to know.
type Controller struct {
	meter   meter
	tenants map[string]*tenant
	before  time.Duration
	failing time.Duration // since when NVML could not be asked; 0: it can
}

// tenant is what the controller remembers of a share.
type tenant struct {
	launches, charged, throttled uint64
	pids                         map[int]time.Duration // when each was last seen alive

	moved  time.Duration // when it last launched
	held   time.Duration // when it was last found to have waited for GPU time
	woke   time.Duration // when it became active; meaningless while it is not
	active bool

	base  float64 // permille of the GPU that it has without borrowing
	busy  float64 // permille of the GPU that it uses
	lends float64 // permille of the GPU that others may use

	correction correction
}

// NewController returns a controller for one GPU that knows no share yet.
func NewController() *Controller {
	return &Controller{tenants: map[string]*tenant{}}
}

// degradedAfter is how long NVML may fail before what was measured counts no more.
const degradedAfter = 2 * time.Second

// Step takes what is known at a moment, any monotonic time, and returns a decision for each tenant, in their order.
// Tenants come and go with the samples.
func (c *Controller) Step(now time.Duration, s Sample) []Decision {
	elapsed := now - c.before
	if len(c.tenants) == 0 {
		elapsed = 0
	}
	c.before = now
	if s.Measured {
		c.failing = 0
	} else if c.failing == 0 {
		c.failing = max(now, 1)
	}
	c.meet(now, s)
	known := s.Measured || now-c.failing < degradedAfter
	saturated := c.meter.total(now) >= crowded
	for _, t := range s.Tenants {
		c.tenants[t.ID].lend(now, elapsed, known, saturated)
	}
	return c.decide(s, known)
}

// meet updates what is remembered of each tenant.
func (c *Controller) meet(now time.Duration, s Sample) {
	bestEffort := BestEffort(s.Tenants)
	present := map[string]bool{}
	moves := make([]counts, len(s.Tenants))
	for i, told := range s.Tenants {
		present[told.ID] = true
		t, ok := c.tenants[told.ID]
		if !ok {
			t = &tenant{launches: told.Launches, charged: told.ChargedNS, throttled: told.ThrottleNS, pids: map[int]time.Duration{}, moved: now, woke: now, active: true, held: now - heldFor}
			c.tenants[told.ID] = t
		}
		t.base = base(told, bestEffort)
		moves[i] = t.count(now, told)
	}
	for id := range c.tenants {
		if !present[id] {
			delete(c.tenants, id)
		}
	}
	var used map[int]time.Duration
	if s.Measured {
		used = c.meter.add(now, s.Utilization)
	}
	parts := attribute(s.Tenants, c.tenants, moves)
	for i, told := range s.Tenants {
		t := c.tenants[told.ID]
		t.busy = 0
		var measured time.Duration
		for pid, part := range parts[i] {
			t.busy += part * c.meter.permille(now, pid)
			measured += time.Duration(part * float64(used[pid]))
		}
		// What was charged by processes that nobody saw cannot be compared with anything.
		if s.Measured && len(t.pids) > 0 {
			t.correction.add(now, measured, moves[i].charged, moves[i].launches)
		}
		t.wake(now)
	}
}

// counts is how far a tenant's counters went in a step.
type counts struct {
	launches uint64
	charged  time.Duration
}

// tooMuch bounds what a region is believed to have charged in a step.
const tooMuch = uint64(time.Hour)

// count takes a tenant's counters and processes. Counters that went back were tampered with; they start anew.
func (t *tenant) count(now time.Duration, told Tenant) counts {
	var moved counts
	if told.Launches > t.launches {
		moved.launches = told.Launches - t.launches
	}
	if told.ChargedNS > t.charged {
		moved.charged = time.Duration(min(told.ChargedNS-t.charged, tooMuch))
	}
	if told.Launches != t.launches {
		t.moved = now
	}
	if told.ThrottleNS > t.throttled {
		t.held = now
	}
	t.launches, t.charged, t.throttled = told.Launches, told.ChargedNS, told.ThrottleNS
	for _, pid := range told.PIDs {
		t.pids[pid] = now
	}
	for pid, seen := range t.pids {
		if now-seen > 2*sampleWindow { // NVML tells of it for a while after its end
			delete(t.pids, pid)
		}
	}
	return moved
}

// wake says whether a tenant is active: it launches, or what it launched still runs.
func (t *tenant) wake(now time.Duration) {
	active := now-t.moved < quietAfter || t.busy >= busyLeast
	if active && !t.active {
		t.woke = now
	}
	t.active = active
}

// attribute says which part of each process's GPU time is each tenant's. A process belongs to two tenants when its
// container has two shares of the GPU; it is then divided as they were charged.
func attribute(told []Tenant, tenants map[string]*tenant, moves []counts) []map[int]float64 {
	charged, holders := map[int]time.Duration{}, map[int]int{}
	for i := range told {
		for pid := range tenants[told[i].ID].pids {
			charged[pid] += moves[i].charged
			holders[pid]++
		}
	}
	parts := make([]map[int]float64, len(told))
	for i := range told {
		parts[i] = map[int]float64{}
		for pid := range tenants[told[i].ID].pids {
			switch {
			case holders[pid] == 1:
				parts[i][pid] = 1
			case charged[pid] > 0:
				parts[i][pid] = float64(moves[i].charged) / float64(charged[pid])
			default:
				parts[i][pid] = 1 / float64(holders[pid])
			}
		}
	}
	return parts
}

// lend says how much of what the tenant was granted others may use now.
func (t *tenant) lend(now, elapsed time.Duration, measured, saturated bool) {
	idle := t.base - t.busy - lendMargin
	switch {
	case !t.active:
		t.lends = t.base
	case !measured || now-t.held < heldFor || now-t.woke < settleFor || idle <= 0:
		t.lends = 0
	case saturated:
		// It may be held up by those who borrow from it. It looks the same if it wants no more, so the GPU is not filled
		// to the brim: then it is not saturated.
		t.lends = math.Floor(t.lends * math.Exp2(-max(elapsed, lendHalving).Seconds()/lendHalving.Seconds()))
	default:
		t.lends = min(idle, t.lends+lendPerSecond*elapsed.Seconds())
	}
}

// decide divides the GPU. What nobody was granted and what is lent is split among those who borrow and want more than
// they have; one that does not want more now has what its part would be then. So a borrower whose neighbours are all silent has the
// whole GPU.
func (c *Controller) decide(s Sample, measured bool) []Decision {
	free, lent, borrowers := float64(wholeGPU), 0.0, 0
	for _, told := range s.Tenants {
		t := c.tenants[told.ID]
		free -= t.base
		lent += t.lends
		if borrows(told) && t.lends == 0 {
			borrowers++
		}
	}
	free = max(free, 0)
	decisions := make([]Decision, len(s.Tenants))
	for i, told := range s.Tenants {
		t := c.tenants[told.ID]
		d := Decision{BusyPermille: round(t.busy)}
		if measured {
			d.CorrectionPermille = t.correction.permille()
		}
		switch {
		case told.CorePercent <= 0:
			d.CorePermille = round(t.base)
		case borrows(told):
			among := borrowers
			if t.lends > 0 {
				among++
			}
			d.CorePermille = min(round(t.base+(free+lent-t.lends)/float64(among)), wholeGPU)
		}
		decisions[i] = d
	}
	return decisions
}

// borrows says whether a tenant may use what others leave idle. What a best-effort share may use holds until the next
// page, so it is never lent anything that must be given back.
func borrows(t Tenant) bool {
	return t.Burst && t.CorePercent > 0
}

// base is what a share of a GPU may use of its time without borrowing, in permille.
func base(t Tenant, bestEffort uint32) float64 {
	if t.CorePercent > 0 {
		return permilleOfPct * float64(t.CorePercent)
	}
	return float64(bestEffort)
}

// BestEffort is what each best-effort share among the shares of a GPU may use of its time, in permille: an even part of
// what the others were not granted, 10 at least. Only CorePercent is looked at.
func BestEffort(tenants []Tenant) uint32 {
	left, bestEffort := wholeGPU, 0
	for _, t := range tenants {
		if t.CorePercent > 0 {
			left -= permilleOfPct * t.CorePercent
		} else {
			bestEffort++
		}
	}
	return uint32(max(left/max(bestEffort, 1), leastCores))
}

func round(permille float64) uint32 {
	return uint32(math.Round(max(permille, 0)))
}
