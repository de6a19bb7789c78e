package main

import "fmt"

// A workload is what one tenant does, in the words of testdata/tenant.c.
type workload struct {
	name string
	args []string
}

func work(name string, args ...string) workload { return workload{name, args} }

// The workloads on which the limiter's constants were chosen.
var (
	launchBound = work("3 us", "kernel=busy_3us", "launch_us=5")
	training    = work("20-400 us, sync", "kernel=busy_20us_to_400us", "launch_us=5", "sync=20", "gap_us=100")
	gemm        = work("2.7 ms", "kernel=busy_2700us", "launch_us=5")
	long        = work("500 ms, sync", "kernel=busy_500ms", "launch_us=5", "sync=1")
	graph       = work("8 ms graph", "kernel=busy_1ms", "graph=8", "launch_us=10", "sync=1", "gap_us=2000")
)

// More workloads.
var (
	launchBoundSync = work("3 us, sync", "kernel=busy_3us", "launch_us=4", "sync=50", "gap_us=10")
	trainingAsync   = work("20-400 us", "kernel=busy_20us_to_400us", "launch_us=5")
	gemmSync        = work("2.7 ms, sync", "kernel=busy_2700us", "launch_us=5", "sync=1", "gap_us=200")
	longAsync       = work("500 ms", "kernel=busy_500ms", "launch_us=5")
	graphAsync      = work("8 ms graph, async", "kernel=busy_1ms", "graph=8", "launch_us=10")
	short           = work("150 us, sync", "kernel=busy_150us", "launch_us=5", "sync=1", "gap_us=20")
	middle          = work("1 ms", "kernel=busy_1ms", "launch_us=5")
	slow            = work("30 ms", "kernel=busy_30ms", "launch_us=5")
	mixed           = work("10 us-80 ms", "kernel=busy_10us_to_80000us", "launch_us=5")
	inference       = work("4 ms, bursts", "kernel=busy_4ms", "launch_us=5", "sync=1", "on_ms=300", "off_ms=700")
	longGraph       = work("40 ms graph", "kernel=busy_2ms", "graph=20", "launch_us=10", "sync=1", "gap_us=5000")
)

// A tenant is a workload and its share.
type tenant struct {
	workload workload
	percent  int // 0 is best effort
	burst    bool
	startMS  int
}

// A mix is what runs on one GPU at a time.
type mix struct{ tenants []tenant }

func (c mix) name() string {
	text := ""
	for i, t := range c.tenants {
		if i > 0 {
			text += " + "
		}
		text += fmt.Sprintf("%s @%d", t.workload.name, t.percent)
		if t.burst {
			text += " Burst"
		}
	}
	return text
}

func alone(w workload, percents ...int) (cases []mix) {
	for _, percent := range percents {
		cases = append(cases, mix{[]tenant{{workload: w, percent: percent}}})
	}
	return cases
}

func together(tenants ...tenant) mix { return mix{tenants} }

func of(w workload, percent int) tenant { return tenant{workload: w, percent: percent} }

func join(lists ...[]mix) (all []mix) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

// first are the cases of the limiter's first tuning: each workload alone at 50, and 30 beside 70.
var first = func() (cases []mix) {
	for _, w := range []workload{launchBound, training, gemm, long, graph} {
		cases = append(cases, alone(w, 50)...)
		cases = append(cases, together(of(w, 30), of(w, 70)))
	}
	return cases
}()

// tuning are all cases that were looked at while the limiter was made.
var tuning = join(first,
	alone(launchBound, 5, 20, 40), alone(launchBoundSync, 10, 30),
	alone(training, 5, 30, 80), alone(trainingAsync, 10, 60, 90),
	alone(gemm, 5, 25, 90), alone(gemmSync, 10, 70),
	alone(graph, 5, 40, 60), alone(graphAsync, 20, 90),
	alone(long, 10, 40, 90), alone(longAsync, 5, 20, 60),
	alone(short, 15, 75), alone(middle, 5, 85), alone(slow, 20, 60), alone(mixed, 10, 50), alone(inference, 20, 60), alone(longGraph, 35),
	[]mix{
		together(of(launchBound, 40), of(gemm, 60)),
		together(of(training, 50), of(longAsync, 50)),
		together(of(trainingAsync, 20), of(graph, 80)),
		together(of(long, 30), of(gemm, 70)),
		together(of(long, 70), of(trainingAsync, 30)),
		together(of(longAsync, 40), of(long, 40)),
		together(of(graphAsync, 25), of(middle, 60)),
		together(of(short, 60), of(mixed, 40)),
		together(of(inference, 50), of(gemm, 50)),
		together(of(slow, 15), of(short, 85)),
		together(of(launchBoundSync, 30), of(launchBound, 20)),
		together(of(gemmSync, 10), of(longGraph, 90)),
		together(of(training, 20), of(gemm, 30), of(graph, 50)),
		together(of(long, 20), of(trainingAsync, 30), of(graphAsync, 50)),
		together(of(launchBound, 10), of(middle, 40), of(slow, 50)),
		together(of(inference, 25), of(mixed, 25), of(longAsync, 50)),
		together(of(short, 33), of(gemm, 33), of(gemmSync, 34)),
	},
	longLaunches,
)

// Workloads of long launches, of any length and of the same.
var (
	wide      = work("2-150 ms", "kernel=busy_2000us_to_150000us", "launch_us=5")
	wideSync  = work("2-150 ms, sync", "kernel=busy_2000us_to_150000us", "launch_us=5", "sync=1", "gap_us=100")
	wider     = work("5-300 ms", "kernel=busy_5ms_to_300ms", "launch_us=5")
	widerSync = work("5-300 ms, sync", "kernel=busy_5ms_to_300ms", "launch_us=5", "sync=1", "gap_us=100")
	third     = work("300 ms", "kernel=busy_300ms", "launch_us=5")
	thirdSync = work("300 ms, sync", "kernel=busy_300ms", "launch_us=5", "sync=1")
	most      = work("400 ms", "kernel=busy_400ms", "launch_us=5")
	mostSync  = work("400 ms, sync", "kernel=busy_400ms", "launch_us=5", "sync=1")
)

// longLaunches are cases like those of the reported ones that went worst, but none of them.
var longLaunches = join(
	alone(wide, 20, 35, 60), alone(wideSync, 20, 35, 60), alone(wider, 20, 35, 60), alone(widerSync, 20, 35, 60),
	alone(third, 10, 25, 50), alone(mostSync, 15, 30, 70),
	[]mix{
		together(of(thirdSync, 30), of(third, 30), of(gemm, 40)),
		together(of(most, 20), of(mostSync, 40), of(middle, 30)),
		together(of(mostSync, 25), of(third, 25), of(trainingAsync, 50)),
		together(of(most, 35), of(thirdSync, 15), of(graphAsync, 40)),
		together(of(wide, 30), of(middle, 70)),
		together(of(wider, 50), of(thirdSync, 30)),
		together(of(wideSync, 25), of(most, 60)),
		together(of(training, 20), of(wide, 30), of(gemm, 40)),
	},
)

// Workloads of the reported cases only.
var (
	decode     = work("12 us, sync", "kernel=busy_12us", "launch_us=4", "sync=40", "gap_us=150")
	prefill    = work("45 ms, sync", "kernel=busy_45ms", "launch_us=5", "sync=1", "gap_us=3000")
	diffusion  = work("700 us", "kernel=busy_700us", "launch_us=5")
	uneven     = work("50 us-5 ms, sync", "kernel=busy_50us_to_5000us", "launch_us=5", "sync=8", "gap_us=300")
	unevenLong = work("1-200 ms", "kernel=busy_1000us_to_200000us", "launch_us=5")
	requests   = work("2 ms, on and off", "kernel=busy_2ms", "launch_us=5", "sync=1", "gap_us=100", "on_ms=150", "off_ms=250")
	smallGraph = work("1.5 ms graph", "kernel=busy_100us", "graph=15", "launch_us=10", "sync=4", "gap_us=500")
	bigGraph   = work("8 ms graph, sync", "kernel=busy_400us", "graph=20", "launch_us=10", "sync=2", "gap_us=1000")
)

// reported are cases that nobody looked at before.
var reported = join(
	alone(launchBound, 10, 30, 50), alone(launchBoundSync, 5, 60),
	alone(training, 15, 45, 90), alone(trainingAsync, 5, 40, 80),
	alone(gemm, 15, 60, 80), alone(gemmSync, 5, 45, 85),
	alone(graph, 10, 25, 70), alone(graphAsync, 5, 50, 80),
	alone(long, 20, 60, 80), alone(longAsync, 15, 45, 90),
	alone(decode, 10, 50), alone(prefill, 20, 75), alone(diffusion, 30, 90), alone(uneven, 10, 55), alone(unevenLong, 25, 70),
	alone(requests, 15, 30), alone(smallGraph, 20, 65), alone(bigGraph, 30, 85),
	[]mix{
		together(of(launchBound, 25), of(training, 40)),
		together(of(gemm, 35), of(diffusion, 65)),
		together(of(long, 40), of(longAsync, 60)),
		together(of(trainingAsync, 45), of(gemmSync, 35)),
		together(of(graphAsync, 60), of(unevenLong, 40)),
		together(of(decode, 20), of(gemm, 80)),
		together(of(prefill, 30), of(middle, 50)),
		together(of(long, 25), of(diffusion, 50)),
		together(of(graph, 30), of(trainingAsync, 60)),
		together(of(bigGraph, 40), of(slow, 40)),
		together(of(smallGraph, 50), of(longAsync, 30)),
		together(of(uneven, 30), of(launchBound, 30)),
		together(of(requests, 15), of(gemm, 60)),
		together(of(longAsync, 10), of(short, 50)),
		together(of(launchBoundSync, 20), of(long, 60)),
		together(of(gemm, 20), of(trainingAsync, 30), of(diffusion, 50)),
		together(of(long, 30), of(longAsync, 30), of(gemm, 40)),
		together(of(launchBound, 15), of(graph, 25), of(unevenLong, 40)),
		together(of(training, 25), of(bigGraph, 25), of(middle, 30)),
		together(of(decode, 10), of(prefill, 20), of(slow, 60)),
		together(of(requests, 10), of(smallGraph, 30), of(trainingAsync, 40)),
	},
)
