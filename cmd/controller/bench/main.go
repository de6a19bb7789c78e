// Command bench measures what the controller costs: how long it takes for an admission review, beside a webhook server
// that allows everything, and what it keeps of claims in memory. It measures no API server, and no network between two
// machines.
//
// Run it from the root of the repository, as root, after `make programs build`: go run ./cmd/controller/bench
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"aliquot.dev/aliquot/e2e/bench"
	"aliquot.dev/aliquot/e2e/cluster"
)

// What is promised. 16 MiB for 9,900 claims are 1.7 KiB a claim: more than the name, UID and version by which one is
// found again, in a heap that Go lets grow to twice its content, and less than a claim has when it is kept whole.
const (
	targetReview  = 20 * time.Millisecond
	targetMemory  = 16 // MiB
	reviewsPerSec = 200
	fewClaims     = 100
)

// settings are how much is measured.
type settings struct {
	nodes, rounds, claims int
	round                 time.Duration
}

func main() {
	cluster.Reexec()
	ctrllog.SetLogger(klog.Background())
	if len(os.Args) == 4 && os.Args[1] == allowAll {
		exit(serveAllowAll(os.Args[2], os.Args[3]))
	}
	var s settings
	flag.IntVar(&s.nodes, "nodes", 100, "how many nodes publish GPUs")
	flag.IntVar(&s.rounds, "rounds", 3, "how many rounds a series has, each once with the server that allows everything")
	flag.DurationVar(&s.round, "round", 10*time.Second, "how long a round is")
	flag.IntVar(&s.claims, "claims", 10_000, "how many claims there are at the end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, s))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, s settings) (err error) {
	cpus, err := setApart(ctx)
	if err != nil {
		return err
	}
	describe(s, cpus)
	w, err := start(ctx, s.nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := w.storeClaims(ctx, fewClaims); err != nil {
		return err
	}
	allowing, err := w.startAllowAll(ctx, cpus)
	if err != nil {
		return err
	}
	defer allowing.Stop()
	controller, err := w.startController(ctx, cpus)
	if err != nil {
		return err
	}
	defer controller.Stop()
	if err := w.counted(ctx, fewClaims); err != nil {
		return err
	}
	return w.measure(ctx, s, allowing, controller)
}

// measure compares like with like: what is resident is looked at while the same load runs, with few claims and with many.
func (w *world) measure(ctx context.Context, s settings, allowing, controller *process) error {
	mix, err := newMix(ctx, controller)
	if err != nil {
		return err
	}
	few, err := w.rounds(ctx, s, mix, allowing, controller)
	if err != nil {
		return err
	}
	if err := w.storeClaims(ctx, s.claims); err != nil {
		return err
	}
	if err := w.counted(ctx, s.claims); err != nil {
		return err
	}
	many, err := w.rounds(ctx, s, mix, allowing, controller)
	if err != nil {
		return err
	}
	few.print(fewClaims)
	many.print(s.claims)
	fmt.Printf("resident: %.0f MiB with %d claims, %.0f MiB with %d, at most %.0f MiB\n", few.controller.resident(), fewClaims, many.controller.resident(), s.claims, controller.Peak())
	few.figures("")
	many.figures("_many_claims")
	bench.Figure("controller_memory_growth", many.controller.resident()-few.controller.resident(), "MiB", targetMemory)
	return errors.Join(few.controller.mistakes(), many.controller.mistakes())
}

// results are the series of some rounds.
type results struct {
	baseline, controller series
	direct               []time.Duration // what a reservation does at the API server, done without the controller
}

func (w *world) rounds(ctx context.Context, s settings, mix *mix, allowing, controller *process) (results, error) {
	var r results
	for range s.rounds {
		var directly sync.WaitGroup
		var directErr error
		directly.Go(func() {
			took, err := w.direct(ctx, s.round)
			r.direct, directErr = append(r.direct, took...), err
		})
		err := r.baseline.add(ctx, allowing, mix.reviews(s.round))
		directly.Wait()
		if err := errors.Join(err, directErr); err != nil {
			return r, err
		}
		if err := r.controller.add(ctx, controller, mix.reviews(s.round)); err != nil {
			return r, err
		}
	}
	slices.Sort(r.direct)
	return r, nil
}

func (r results) print(claims int) {
	r.baseline.print(fmt.Sprintf("%d claims, a server that allows everything", claims))
	fmt.Printf("  a read and a write of a ShareQuota meanwhile: %s\n", bench.Spread(r.direct))
	r.controller.print(fmt.Sprintf("%d claims, the controller", claims))
}

func (r results) figures(suffix string) {
	p99 := func(s series, kinds ...string) float64 {
		return bench.Milliseconds(bench.Quantile(s.took(kinds...), 0.99))
	}
	target := bench.Milliseconds(targetReview)
	fmt.Printf("p99 of a review by a server that allows everything: %.1f ms; of a read and a write at the API server: %.1f ms\n",
		p99(r.baseline, append(checks, reserve)...), bench.Milliseconds(bench.Quantile(r.direct, 0.99)))
	bench.Figure("admission_review_p99"+suffix, p99(r.controller, checks...), "ms", target)
	bench.Figure("admission_reservation_p99"+suffix, p99(r.controller, reserve), "ms", target)
}

func describe(s settings, c cpus) {
	fmt.Printf("machine: %s\n", bench.Machine())
	fmt.Printf("method: the controller alone on CPU %s, the cluster and the load on CPU %s; %d nodes of 8 GPUs with partitions and one of 4 without; %d rounds of %s "+
		"of %d reviews a second, sent whether or not earlier ones are answered, each timed from when it was to be sent; resident is the median of the last round\n",
		c.server, c.others, s.nodes, s.rounds, s.round, reviewsPerSec)
}
