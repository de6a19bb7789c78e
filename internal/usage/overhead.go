package usage

import "aliquot.dev/aliquot/cdi"

// overhead is what is known of the process in one slot.
type overhead struct {
	generation uint32
	mib        uint32 // beyond what its allocations are charged; 0: not measured
	steady     int    // for how many measurements in a row it stood still
}

// looks are two reads of a share's region, before and after NVML was asked, and what the share's slots cost so far. Both are
// empty where the region could not be read.
type looks struct {
	before, after cdi.Region
	slots         []overhead // at least as many as before has
}

// stable says whether slot i was the same before and after NVML was asked, with nothing pending: then NVML's figure can
// be compared with what the slot is charged.
func (l looks) stable(i int) bool {
	if i >= len(l.before.Slots) || i >= len(l.after.Slots) {
		return false
	}
	a, b := l.before.Slots[i], l.after.Slots[i]
	return a.Live && b.Live && a.HostPID > 0 && a.HostPID == b.HostPID && a.Generation == b.Generation &&
		a.UsedMiB == b.UsedMiB && a.ContextBytes == b.ContextBytes && a.PendingMiB == 0 && b.PendingMiB == 0
}

// held is what the slots of one process say that it holds of a GPU. A container with several shares of the GPU has a slot in
// each.
type held struct {
	used, context uint64 // bytes charged, and the part of it that contexts cost
	unstable      bool
	share, slot   int // where its contexts are charged
	largest       uint64
}

// measure compares what NVML says that processes hold of one GPU, in bytes by host pid, with what they are charged. It updates the
// slots' overheads and returns what each share really holds. A process's overhead is told in the slot that its
// contexts are charged to, or the first.
func measure(shares []looks, bytes map[int]uint64) []uint64 {
	processes := map[int]*held{}
	for s, l := range shares {
		for i, slot := range l.before.Slots {
			if l.slots[i].generation != slot.Generation || !slot.Live {
				l.slots[i] = overhead{generation: slot.Generation}
			}
			if !slot.Live || slot.HostPID <= 0 {
				continue
			}
			p, ok := processes[slot.HostPID]
			if !ok {
				p = &held{share: s, slot: i}
				processes[slot.HostPID] = p
			}
			p.used += slot.UsedBytes()
			p.context += min(slot.ContextBytes, slot.UsedBytes())
			p.unstable = p.unstable || !l.stable(i)
			if slot.ContextBytes > p.largest {
				p.share, p.slot, p.largest = s, i, slot.ContextBytes
			}
		}
	}
	for pid, p := range processes {
		if actual, ok := bytes[pid]; ok && !p.unstable {
			shares[p.share].slots[p.slot].set(p.overheadMiB(actual))
		}
	}
	return actualBytes(shares, processes, bytes)
}

// overheadMiB is what a process that holds actual bytes needs beyond its allocations. Where contexts are charged and cost nothing, 1 is
// the least that can be told.
func (p *held) overheadMiB(actual uint64) uint32 {
	allocated := p.used - p.context
	if actual > allocated {
		if mib := (actual - allocated + mebibyte - 1) / mebibyte; mib <= 1<<22 {
			return uint32(mib)
		}
	}
	if p.context > 0 {
		return 1
	}
	return 0
}

const mebibyte = 1 << 20

func (o *overhead) set(mib uint32) {
	if mib == o.mib {
		o.steady++
	} else {
		o.mib, o.steady = mib, 1
	}
}

// actualBytes divides what NVML says of each process between its shares: each has what it charged, and the rest is where
// the contexts are.
func actualBytes(shares []looks, processes map[int]*held, bytes map[int]uint64) []uint64 {
	actual := make([]uint64, len(shares))
	for s, l := range shares {
		signed := int64(0)
		counted := map[int]bool{}
		for _, slot := range l.before.Slots {
			p, ok := processes[slot.HostPID]
			if !slot.Live || !ok {
				continue
			}
			if total, known := bytes[slot.HostPID]; known {
				signed += int64(slot.UsedBytes())
				if p.share == s && !counted[slot.HostPID] {
					counted[slot.HostPID] = true
					signed += int64(total) - int64(p.used)
				}
			}
		}
		actual[s] = uint64(max(signed, 0))
	}
	return actual
}
