package usage

import (
	"testing"
	"time"

	"aliquot.dev/aliquot/internal/gpu"
)

// NVML says of a process that rests now and then that it was busy for a second after each time. That must not count twice.
func TestUseAddsUpAcrossRests(t *testing.T) {
	const busy = 300 * time.Millisecond
	for _, every := range []time.Duration{700 * time.Millisecond, 1250 * time.Millisecond, 1900 * time.Millisecond, 4100 * time.Millisecond} {
		used := func(until time.Duration) time.Duration { return until/every*busy + min(until%every, busy) }
		var m meter
		var measured time.Duration
		const length = 82 * time.Second
		for now := 500 * time.Millisecond; now <= length; now += 500 * time.Millisecond {
			noted := now.Truncate(simRefresh)
			var samples []gpu.Utilization
			if percent := (used(noted) - used(max(noted-sampleWindow, 0))) * 100 / sampleWindow; percent > 0 {
				samples = append(samples, gpu.Utilization{PID: 7, TimeUS: uint64(noted.Microseconds()), SMPercent: uint32(percent)})
			}
			measured += m.add(now, samples)[7]
		}
		if ratio := float64(measured) / float64(used(length)); ratio < 0.95 || ratio > 1.05 {
			t.Errorf("%v in %v: %.3f of what was used is measured", busy, every, ratio)
		}
	}
}

// NVML's figure rises for a second when a program begins; what it was charged meanwhile is not too much.
func TestTheFirstSecondIsComparedAsItIsMeasured(t *testing.T) {
	s := stepper{Controller: NewController()}
	tenant := Tenant{ID: "a", CorePercent: 50, PIDs: []int{7}}
	var got uint32
	for i, percent := range []uint32{0, 20, 40, 40, 40} {
		if i > 0 {
			tenant.Launches, tenant.ChargedNS = tenant.Launches+100, tenant.ChargedNS+200e6
		}
		got = s.step(Sample{Tenants: []Tenant{tenant}, Measured: true, Utilization: []gpu.Utilization{s.used(7, percent)}})[0].CorrectionPermille
	}
	if got < 980 || got > 1020 {
		t.Errorf("corrected by %d permille, want about 1000", got)
	}
}

// Long launches are charged what they took, and what ran before the first look was charged before it.
func TestLongLaunchesAreNotCorrectedUpwards(t *testing.T) {
	for charged, want := range map[time.Duration]uint32{300 * time.Millisecond: 1000, 3 * time.Millisecond: 1500} {
		s := stepper{Controller: NewController()}
		tenant := Tenant{ID: "a", CorePercent: 40, PIDs: []int{7}}
		var got uint32
		for range 40 {
			launches := uint64(300 * time.Millisecond / charged)
			tenant.Launches += launches
			tenant.ChargedNS += launches * uint64(charged)
			got = s.step(Sample{Tenants: []Tenant{tenant}, Measured: true, Utilization: []gpu.Utilization{s.used(7, 90)}})[0].CorrectionPermille
		}
		if diff := int(got) - int(want); diff < -50 || diff > 50 {
			t.Errorf("launches of %v, and half as much again was measured: corrected by %d permille, want about %d", charged, got, want)
		}
	}
}
