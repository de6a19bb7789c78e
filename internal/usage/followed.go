package usage

import "aliquot.dev/aliquot/cdi"

// followed is what the loop keeps of a share.
type followed struct {
	dir   string
	usage *cdi.Usage // nil: not open
	agent *cdi.Agent // nil: not open
	slots []overhead // as many as a read ever found: room for all, in a thousand shares, would be megabytes
	last  cdi.Region // as it was when it could be read
}

// follow returns what is kept of a share.
func (l *Loop) follow(s Share) *followed {
	f, ok := l.followed[s.Dir]
	if !ok {
		f = &followed{dir: s.Dir}
		l.followed[s.Dir] = f
	}
	return f
}

// read says what the share's region holds now. A file that was removed is opened anew the next time: it may be there
// again.
func (f *followed) read() (cdi.Region, error) {
	if f.usage == nil {
		usage, err := cdi.OpenUsage(f.dir)
		if err != nil {
			return cdi.Region{}, err
		}
		f.usage = usage
	}
	region, err := f.usage.Read()
	if err != nil {
		_ = f.usage.Close()
		f.usage = nil
		return cdi.Region{}, err
	}
	f.last = region
	if more := len(region.Slots) - len(f.slots); more > 0 {
		f.slots = append(f.slots, make([]overhead, more)...)
	}
	return region, nil
}

// write tells the share's library what was decided.
func (f *followed) write(d Decision, actualBytes uint64) error {
	if f.agent == nil {
		agent, err := cdi.OpenAgent(f.dir)
		if err != nil {
			return err
		}
		f.agent = agent
	}
	page := cdi.Page{
		CorrectionPermille: d.CorrectionPermille, BusyPermille: d.BusyPermille, CorePermille: d.CorePermille, ActualBytes: actualBytes,
	}
	for i, slot := range f.slots {
		page.Slots[i] = cdi.SlotCost{OverheadMiB: slot.mib, Generation: slot.generation}
	}
	err := f.agent.Write(page)
	if err != nil {
		_ = f.agent.Close()
		f.agent = nil
	}
	return err
}

func (f *followed) close() {
	if f.usage != nil {
		_ = f.usage.Close()
	}
	if f.agent != nil {
		_ = f.agent.Close()
	}
	f.usage, f.agent = nil, nil
}

// tenant is what the controller is told of the share. Counters of a region that could not be read stand still.
func (f *followed) tenant(s Share, now cdi.Region) Tenant {
	t := Tenant{
		ID: s.Dir, CorePercent: s.CorePercent, Burst: s.Burst,
		Launches: f.last.Launches, ChargedNS: f.last.ChargedNS, ThrottleNS: f.last.ThrottleNS,
	}
	for _, slot := range now.Slots {
		if slot.Live && slot.HostPID > 0 {
			t.PIDs = append(t.PIDs, slot.HostPID)
		}
	}
	return t
}

// usageOf is the share as others may know it.
func (f *followed) usageOf(s Share, d Decision, actualBytes uint64) ShareUsage {
	u := ShareUsage{
		Share: s, Decision: d, ActualBytes: actualBytes,
		DeniedAllocs: f.last.DeniedAllocs, Launches: f.last.Launches, ThrottleNS: f.last.ThrottleNS,
	}
	for i, slot := range f.last.Slots {
		u.UsedBytes += slot.UsedBytes()
		if slot.Live {
			u.Processes = append(u.Processes, ProcessUsage{
				HostPID: slot.HostPID, UsedBytes: slot.UsedBytes(), PeakBytes: slot.PeakBytes, OverheadMiB: f.slots[i].mib,
			})
		}
	}
	return u
}

// What a context costs is believed when a process was measured to need the same this many times.
const contextSteady = 3

// leastContextMiB bounds from below what is believed of it: a container can lie about what its allocations are charged,
// and others would be charged too little until they are measured. The smallest contexts known take 100 MiB.
const leastContextMiB = 64

// learn updates what a context costs on a model: the least that any process needs, since the others have loaded code.
func (l *Loop) learn(shares []Share, kept []*followed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range kept {
		for _, slot := range f.slots {
			if shares[i].Model == "" || slot.steady < contextSteady || slot.mib < leastContextMiB {
				continue
			}
			if known, ok := l.contexts[shares[i].Model]; !ok || slot.mib < known {
				l.contexts[shares[i].Model] = slot.mib
			}
		}
	}
}
