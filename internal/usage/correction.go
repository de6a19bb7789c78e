package usage

import (
	"math"
	"slices"
	"time"
)

// What it takes for a ratio of measured to charged GPU time to mean something.
const (
	correctionWindow   = 4 * time.Second        // of time in which there were launches, where there is as much
	correctionLaunches = 10                     // in a full window, so that one long kernel at its edge matters little
	correctionHorizon  = time.Minute            // as far back as is looked for that many
	firstWindow        = 2 * time.Second        // for the first figure
	firstLaunches      = 8                      // for the first figure
	longCharged        = 2 * time.Second        // of GPU time, so few launches of which are enough for the first figure:
	longLaunches       = 2                      // their share of time would be wrong for long
	leastCharged       = 100 * time.Millisecond // of GPU time
	leastChargedPart   = 200                    // and of that time, one part in so many: NVML counts whole percents
	// eachMeasured is the mean cost of launches that the library charges one by one for the time between two events (AQ_COST_LONG_NS).
	// That is never less than what they used of the GPU.
	eachMeasured = 5 * time.Millisecond

	correctionMin = 333 // permille
	correctionMax = 3000
)

// correction says by how much the library's estimates of GPU time are off.
type correction struct {
	points []point // in order of time
}

// point is what was counted since the beginning.
type point struct {
	at                time.Duration
	active            time.Duration // in which there were launches
	measured, charged time.Duration
	seen              time.Duration // what was charged, as late as NVML would have seen it
	launches          uint64
}

// add counts what happened since the call before.
func (c *correction) add(at, measured, charged time.Duration, launches uint64) {
	next := point{at: at, measured: measured, charged: charged, launches: launches}
	if len(c.points) > 0 {
		last := c.points[len(c.points)-1]
		next.measured, next.charged, next.launches = next.measured+last.measured, next.charged+last.charged, next.launches+last.launches
		next.active = last.active
		if launches > 0 {
			next.active += at - last.at
		}
	}
	old := slices.IndexFunc(c.points, func(p point) bool { return at-p.at <= correctionHorizon })
	if old < 0 {
		old = len(c.points)
	}
	c.points = append(c.points[old:], next)
	c.points[len(c.points)-1].seen = c.average(at)
}

// average is what was charged until some time in the last second: what was used is known from moving averages over as long.
func (c *correction) average(at time.Duration) time.Duration {
	sum, count := time.Duration(0), time.Duration(0)
	for _, p := range slices.Backward(c.points) {
		if count > 0 && at-p.at >= sampleWindow {
			break
		}
		sum, count = sum+p.charged, count+1
	}
	return sum / count
}

// permille is the ratio of measured to charged time over the last seconds, clamped; 0 while it means nothing.
func (c *correction) permille() uint32 {
	if len(c.points) == 0 {
		return 0
	}
	last := c.points[len(c.points)-1]
	for i := len(c.points) - 2; i >= 0; i-- {
		first := c.points[i]
		active, launches := last.active-first.active, last.launches-first.launches
		full := active >= correctionWindow && launches >= correctionLaunches
		if !full && i > 0 {
			continue
		}
		measured, charged := last.measured-first.measured, last.seen-first.seen
		enough := active >= firstWindow && launches >= firstLaunches || charged >= longCharged && launches >= longLaunches
		if enough && charged >= max(leastCharged, active/leastChargedPart) && measured > 0 {
			ratio := float64(measured) / float64(charged)
			if charged >= eachMeasured*time.Duration(launches) {
				ratio = min(ratio, 1)
			}
			return certain(ratio, launches)
		}
	}
	return 0
}

// certain is a ratio in permille, clamped. A launch is charged at once and measured while it runs, so at the edges of a window there
// is one more or less: a ratio that is no further from 1 says nothing.
func certain(ratio float64, launches uint64) uint32 {
	if math.Abs(ratio-1) <= 1/float64(launches) {
		return 1000
	}
	return round(min(max(1000*ratio, correctionMin), correctionMax))
}
