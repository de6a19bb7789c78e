package usage

import (
	"cmp"
	"slices"
	"time"

	"aliquot.dev/aliquot/internal/gpu"
)

const (
	// sampleWindow is what one sample of NVML's is about.
	sampleWindow = time.Second
	// sampleStale is when a process of which there is no newer sample is taken to be idle: NVML does not report those.
	sampleStale = 1200 * time.Millisecond
)

// meter turns NVML's samples, integer percents of the last second, into the GPU time that each process used.
type meter struct {
	last   map[int]reading // by host pid
	looked time.Duration   // when NVML was last asked
}

type reading struct {
	timeUS  uint64
	percent uint32
	seen    time.Duration
}

// add takes the samples since the look before and returns the GPU time that they add to each process. A sample stands for the time
// since the process's sample before, a second at most. NVML tells nothing of a process that did nothing for a second: the first
// sample after that stands for the time since that look. So the times add up to what was used, although each sample is a moving
// average.
func (m *meter) add(now time.Duration, samples []gpu.Utilization) map[int]time.Duration {
	if m.last == nil {
		m.last = map[int]reading{}
	}
	busy := map[int]time.Duration{}
	for _, s := range slices.SortedFunc(slices.Values(samples), func(a, b gpu.Utilization) int {
		return cmp.Compare(a.TimeUS, b.TimeUS)
	}) {
		before, ok := m.last[s.PID]
		if ok && s.TimeUS <= before.timeUS {
			continue
		}
		span := sampleWindow
		if !ok || before.seen < m.looked {
			span = min(span, now-m.looked)
		}
		if us := s.TimeUS - before.timeUS; ok && us < uint64(span.Microseconds()) {
			span = time.Duration(us) * time.Microsecond
		}
		percent := min(s.SMPercent, 100)
		busy[s.PID] += span * time.Duration(percent) / 100
		m.last[s.PID] = reading{timeUS: s.TimeUS, percent: percent, seen: now}
	}
	m.looked = now
	for pid, r := range m.last {
		if now-r.seen > 2*sampleWindow {
			delete(m.last, pid)
		}
	}
	return busy
}

// permille is the part of the GPU's time that a process uses now.
func (m *meter) permille(now time.Duration, pid int) float64 {
	r, ok := m.last[pid]
	if !ok || now-r.seen > sampleStale {
		return 0
	}
	return float64(r.percent) * 10
}

// total is the part of the GPU's time that all processes use now, ours and others.
func (m *meter) total(now time.Duration) float64 {
	total := 0.0
	for pid := range m.last {
		total += m.permille(now, pid)
	}
	return total
}
