package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// A workload is kernels of one length, with or without waiting for them.
type workload struct {
	name string
	us   float64
	sync int // wait after so many launches; 0: never
}

var (
	shortAsync  = workload{"50 us", 50, 0}
	shortSync   = workload{"50 us, sync", 50, 20}
	middleAsync = workload{"2.7 ms", 2700, 0}
	middleSync  = workload{"2.7 ms, sync", 2700, 1}
	longAsync   = workload{"100 ms", 100_000, 0}
	longSync    = workload{"100 ms, sync", 100_000, 1}

	workloads = []workload{shortAsync, shortSync, middleAsync, middleSync, longAsync, longSync}
)

// A tenant is a workload and its share.
type tenant struct {
	workload workload
	percent  int
}

// A mix is what runs on the GPU at a time.
type mix []tenant

func (m mix) name() string {
	names := make([]string, len(m))
	for i, t := range m {
		names[i] = fmt.Sprintf("%s @%d", t.workload.name, t.percent)
	}
	return strings.Join(names, " + ")
}

// short has each workload, pair of shares and kind of neighbour at least once.
var short = []mix{
	{{middleAsync, 30}, {middleAsync, 70}},
	{{shortSync, 30}, {longSync, 70}},
	{{shortAsync, 50}, {longAsync, 50}},
	{{middleSync, 50}, {middleAsync, 50}},
	{{shortAsync, 10}, {middleSync, 90}},
	{{longAsync, 10}, {shortAsync, 90}},
	{{shortAsync, 25}},
	{{longSync, 50}},
}

// all is every workload alone at 25 and 50, and beside itself and its opposite in each pair of shares.
func all() (mixes []mix) {
	for i, w := range workloads {
		for _, percent := range []int{25, 50} {
			mixes = append(mixes, mix{{w, percent}})
		}
		for _, pair := range [][2]int{{30, 70}, {50, 50}, {10, 90}} {
			mixes = append(mixes, mix{{w, pair[0]}, {w, pair[1]}}, mix{{w, pair[0]}, {workloads[len(workloads)-1-i], pair[1]}})
		}
	}
	return mixes
}

// result is what one tenant got, percent of the GPU's time.
type result struct {
	mix                 string // empty but for the first of a mix
	share, demand, used float64
	k                   float64 // the agent's correction at the end; 0: none
}

// missed is by how much a tenant missed what it was to have: its share, or all that it asked for.
func (r result) missed() float64 {
	return r.used - math.Min(r.share, r.demand)
}

const heading = "| mix | share | demand | used | error | k |\n|---|---:|---:|---:|---:|---:|"

func (r result) String() string {
	return fmt.Sprintf("| %s | %.0f | %.1f | %.1f | %+.1f | %.2f |", r.mix, r.share, r.demand, r.used, r.missed(), r.k)
}

// report prints what the results come to.
func report(out io.Writer, name string, results []result) {
	if len(results) == 0 {
		return
	}
	sum, worst := 0.0, 0.0
	for _, r := range results {
		sum += math.Abs(r.missed())
		worst = math.Max(worst, math.Abs(r.missed()))
	}
	average := sum / float64(len(results))
	fmt.Fprintf(out, "\n%d shares: mean absolute error %.2f pp, worst %.2f pp\n", len(results), average, worst)
	verdict(out, name+"_mean_abs_error", average, 2)
	verdict(out, name+"_worst_abs_error", worst, 5)
}

// verdict compares a figure in percentage points with the most that it may be.
func verdict(out io.Writer, name string, value, most float64) {
	word := "ok"
	if value > most {
		word = "short"
	}
	fmt.Fprintf(out, "bench %s %.2f pp target %g %s\n", name, value, most, word)
}
