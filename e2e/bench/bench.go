// Package bench is what the benchmarks of Aliquot's programs do alike: it tells of the machine, starts the program that is
// measured, asks Linux what that costs and prints figures. It judges only by the target that it is given.
package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Figure prints a figure and whether it is at most its target.
func Figure(name string, value float64, unit string, target float64) {
	verdict := "ok"
	if value > target {
		verdict = "short"
	}
	fmt.Printf("bench %s %.1f %s target %.0f %s\n", name, value, unit, target, verdict)
}

// Machine says on what and beside how much else is measured.
func Machine() string {
	model := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d CPUs, load %s", model, runtime.NumCPU(), Load())
}

// Load is how many processes ran or wanted to, in the last 1, 5 and 15 minutes.
func Load() string {
	load, _ := os.ReadFile("/proc/loadavg")
	return strings.TrimSpace(string(load))
}

// Quantile is the smallest of sorted values that so large a part of them does not exceed.
func Quantile(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	n := int(part*float64(len(sorted)) + 0.999999)
	return sorted[min(max(n, 1), len(sorted))-1]
}

// Spread describes how long something took.
func Spread(took []time.Duration) string {
	sorted := slices.Sorted(slices.Values(took))
	at := func(part float64) float64 { return Milliseconds(Quantile(sorted, part)) }
	return fmt.Sprintf("%5d times, p50 %5.1f ms, p90 %5.1f ms, p99 %5.1f ms, max %5.1f ms", len(sorted), at(0.5), at(0.9), at(0.99), at(1))
}

// Milliseconds is a duration as figures have it.
func Milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
