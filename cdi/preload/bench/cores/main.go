// Command cores measures how close the preload library and the node's agent hold tenants to their shares of a simulated
// GPU's time, on a virtual clock. It says nothing about real hardware: the simulated GPU runs one process at a time, in
// slices of 2 ms, and knows no copy engines and no kernels beside each other.
//
// Run it from the root of the repository, as root: go run ./cdi/preload/bench/cores
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"aliquot.dev/aliquot/e2e/simrun"
)

func main() {
	source := flag.String("dir", "cdi/preload", "the folder of the library's Makefile")
	focus := flag.String("focus", ".", "a regular expression: only mixes whose name matches")
	set := flag.String("set", "both", "tuning, reported or both")
	flag.Parse()
	if err := bench(*source, regexp.MustCompile(*focus), *set); err != nil {
		fmt.Fprintln(os.Stderr, "cores:", err)
		os.Exit(1)
	}
}

func bench(source string, focus *regexp.Regexp, set string) error {
	dir, err := os.MkdirTemp("", "aliquot-cores-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	s, err := setUp(ctx, source, dir)
	if err != nil {
		return err
	}
	fmt.Printf("machine: %d CPUs; a simulated GPU on a virtual clock, time slices of 2 ms\n", runtime.NumCPU())
	fmt.Printf("method: each mix runs %v, then %v are measured by the simulated GPU's own account; the agent sees integer percent over 1 s, each %v; demand is the workload alone without the library\n",
		warmUp, measured, tick)
	if set != "reported" {
		fmt.Println("\ncases looked at while the limiter was made:")
		if _, err := s.table(ctx, matching(tuning, focus)); err != nil {
			return err
		}
	}
	if set != "tuning" {
		fmt.Println("\ncases that were not:")
		errors, err := s.table(ctx, matching(reported, focus))
		if err != nil {
			return err
		}
		if len(errors) == 0 {
			return fmt.Errorf("no mix is called like %s", focus)
		}
		report("cores_mean_abs_error", mean(errors), "pp", 2, false)
		report("cores_worst_abs_error", worst(errors), "pp", 5, false)
		return s.lending(ctx)
	}
	return nil
}

func matching(mixes []mix, focus *regexp.Regexp) (some []mix) {
	for _, m := range mixes {
		if focus.MatchString(m.name()) {
			some = append(some, m)
		}
	}
	return some
}

// each calls do for so many indices, as many at a time as there are processors.
func each(count int, do func(i int) error) error {
	var wait sync.WaitGroup
	errs := make(chan error, count)
	tokens := make(chan struct{}, runtime.NumCPU())
	for i := range count {
		wait.Add(1)
		go func() {
			defer wait.Done()
			tokens <- struct{}{}
			errs <- do(i)
			<-tokens
		}()
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// measureDemands runs each workload of the mixes alone and without the library.
func (s *setting) measureDemands(ctx context.Context, mixes []mix) error {
	var missing []workload
	for _, m := range mixes {
		for _, t := range m.tenants {
			if _, known := s.demands[t.workload.name]; !known {
				s.demands[t.workload.name] = 0
				missing = append(missing, t.workload)
			}
		}
	}
	demands := make([]float64, len(missing))
	err := each(len(missing), func(i int) error {
		readings, err := s.simulate(ctx, []tenant{{workload: missing[i]}}, false, 12*time.Second)
		if err == nil {
			demands[i] = simrun.Used(readings, 0, 2*time.Second, 12*time.Second)
		}
		return err
	})
	for i, w := range missing {
		s.demands[w.name] = demands[i]
	}
	return err
}

// table prints what the tenants of each mix got, and returns by how much each missed its target.
func (s *setting) table(ctx context.Context, mixes []mix) ([]float64, error) {
	if err := s.measureDemands(ctx, mixes); err != nil {
		return nil, err
	}
	results := make([][]simrun.Tick, len(mixes))
	err := each(len(mixes), func(i int) (err error) {
		results[i], err = s.simulate(ctx, mixes[i].tenants, true, warmUp+measured)
		if err != nil {
			err = fmt.Errorf("%s: %w", mixes[i].name(), err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var errors []float64
	fmt.Printf("%-72s %7s %7s %7s %7s\n", "mix", "share", "demand", "used", "error")
	for i, m := range mixes {
		for j, t := range m.tenants {
			name := ""
			if j == 0 {
				name = m.name()
			}
			demand, got := s.demands[t.workload.name], simrun.Used(results[i], j, warmUp, warmUp+measured)
			missed := got - math.Min(float64(t.percent), demand)
			errors = append(errors, math.Abs(missed))
			fmt.Printf("%-72s %7d %7.1f %7.1f %+7.1f\n", name, t.percent, demand, got, missed)
		}
	}
	fmt.Printf("%d shares: mean absolute error %.2f pp, worst %.2f pp\n", len(errors), mean(errors), worst(errors))
	return errors, nil
}

// lending measures Burst and best effort.
func (s *setting) lending(ctx context.Context) error {
	const start, length = 20 * time.Second, 40 * time.Second
	fmt.Println("\nlent cores:")
	burst := tenant{workload: gemmSync, percent: 30, burst: true}
	newcomer := tenant{workload: middle, percent: 70, startMS: int(start.Milliseconds())}
	if err := s.measureDemands(ctx, []mix{together(burst)}); err != nil {
		return err
	}
	readings, err := s.simulate(ctx, []tenant{burst, newcomer}, true, length)
	if err != nil {
		return err
	}
	idle := simrun.Used(readings, 0, warmUp, start) / math.Min(100, s.demands[burst.workload.name]) * 100
	fmt.Printf("Burst @%d alone uses %.1f %% of what it could; a Fixed @%d comes at %v\n", burst.percent, idle, newcomer.percent, start)
	back := givenBack(readings, start, length, float64(burst.percent)+5)
	report("cores_burst_use_of_idle_gpu", idle, "percent", 95, true)
	fmt.Printf("in the rest of the time it uses %.1f %%, the other %.1f\n",
		simrun.Used(readings, 0, start+back, length), simrun.Used(readings, 1, start+back, length))
	report("cores_burst_given_back", back.Seconds(), "s", 2, false)
	best := []tenant{{workload: gemm, percent: 70}, {workload: trainingAsync}, {workload: middle}}
	readings, err = s.simulate(ctx, best, true, warmUp+measured)
	if err != nil {
		return err
	}
	fixed := simrun.Used(readings, 0, warmUp, warmUp+measured)
	first, second := simrun.Used(readings, 1, warmUp, warmUp+measured), simrun.Used(readings, 2, warmUp, warmUp+measured)
	fmt.Printf("Fixed @70 beside two of best effort: %.1f, %.1f and %.1f percent\n", fixed, first, second)
	report("cores_best_effort_worst_error", worst([]float64{fixed - 70, first - 15, second - 15}), "pp", 5, false)
	return nil
}

// givenBack is how long after start it takes until the first tenant uses no more than limit percent in a second.
func givenBack(ticks []simrun.Tick, start, length time.Duration, limit float64) time.Duration {
	for from := start; from+time.Second <= length; from += tick {
		if simrun.Used(ticks, 0, from, from+time.Second) <= limit {
			return from + time.Second - start
		}
	}
	return length
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += math.Abs(v)
	}
	return sum / float64(len(values))
}

func worst(values []float64) (most float64) {
	for _, v := range values {
		most = math.Max(most, math.Abs(v))
	}
	return most
}

func report(name string, value float64, unit string, target float64, atLeast bool) {
	verdict := "ok"
	if atLeast && value < target || !atLeast && value > target {
		verdict = "short"
	}
	fmt.Printf("bench %s %s %s target %g %s\n", name, strings.TrimSuffix(fmt.Sprintf("%.2f", value), ".00"), unit, target, verdict)
}
