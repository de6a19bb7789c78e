package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/usage"
)

const (
	startUp     = 5 * time.Second // within which a tenant has its context
	demandTime  = 2 * time.Second
	shareMemory = 4 << 30
)

// bench runs tenants on one GPU.
type bench struct {
	options options
	monitor usage.Hardware
	device  gpu.Device
	dir     string
	rate    float64            // turns of a kernel's loop in a µs
	demands map[string]float64 // of a workload alone, without the library, percent

	contextMiB uint32 // what a context was found to cost; 0: not measured
}

// newBench finds out how fast the GPU is.
func newBench(ctx context.Context, o options, monitor usage.Hardware, device gpu.Device) (*bench, error) {
	b := &bench{options: o, monitor: monitor, device: device, demands: map[string]float64{}}
	var err error
	for _, path := range []*string{&b.options.library, &b.options.spin} {
		if *path, err = filepath.Abs(*path); err == nil {
			_, err = os.Stat(*path)
		}
		if err != nil {
			return nil, err
		}
	}
	if b.dir, err = os.MkdirTemp("", "gpucheck-"); err != nil {
		return nil, err
	}
	if b.rate, err = b.calibrate(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) close() {
	b.monitor.Release()
	os.RemoveAll(b.dir)
}

// spin is a tenant's process in a folder, with or without the library.
func (b *bench) spin(ctx context.Context, dir string, limited bool, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.options.spin, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+b.device.UUID)
	if limited {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+b.options.library)
	}
	cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return cmd
}

// said is the number that a tenant prints at its end.
func said(cmd *exec.Cmd) (float64, error) {
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", cmd, err, cmd.Stderr)
	}
	value, err := strconv.ParseFloat(strings.TrimSpace(fmt.Sprint(cmd.Stdout)), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", cmd, err)
	}
	return value, nil
}

func (b *bench) calibrate(ctx context.Context) (float64, error) {
	cmd := b.spin(ctx, b.dir, false, "calibrate")
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	rate, err := said(cmd)
	if err == nil && (!(rate > 0) || math.IsInf(rate, 0)) {
		err = fmt.Errorf("%s: %v turns in a µs", cmd, rate)
	}
	return rate, err
}

// drift says how much faster or slower the GPU is than at the start: by so much all figures may be off.
func (b *bench) drift(ctx context.Context) error {
	rate, err := b.calibrate(ctx)
	if err == nil {
		fmt.Printf("\nturns in a µs: %.2f at the start, %.2f at the end\n", b.rate, rate)
		verdict(os.Stdout, "gpu_clock_drift", max(rate/b.rate, b.rate/rate)*100-100, 1)
	}
	return err
}

// window is what tenants measure, by CLOCK_MONOTONIC.
type window struct{ from, until time.Duration }

func windowAfter(warmUp, measured time.Duration) (window, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return window{}, err
	}
	from := time.Duration(now.Nano()) + warmUp
	return window{from, from + measured}, nil
}

func (b *bench) args(w workload, in window) []string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	return []string{number(b.rate), number(w.us), strconv.Itoa(w.sync), number(in.from.Seconds()), number(in.until.Seconds())}
}

// demand is what a workload uses alone and without the library.
func (b *bench) demand(ctx context.Context, w workload) (float64, error) {
	if known, ok := b.demands[w.name]; ok {
		return known, nil
	}
	in, err := windowAfter(startUp, demandTime)
	if err != nil {
		return 0, err
	}
	cmd := b.spin(ctx, b.dir, false, b.args(w, in)...)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	percent, err := said(cmd)
	if err == nil {
		b.demands[w.name] = percent
	}
	return percent, err
}

// table prints what the tenants of each mix got, as it comes to be known. An error comes with the results until then.
func (b *bench) table(ctx context.Context, mixes []mix) (results []result, err error) {
	fmt.Printf("\n%s\n", heading)
	for _, m := range mixes {
		got, err := b.run(ctx, m)
		if err != nil {
			return results, fmt.Errorf("%s: %w", m.name(), err)
		}
		for i := range got {
			if i == 0 {
				got[i].mix = m.name()
			}
			fmt.Println(got[i])
		}
		results = append(results, got...)
	}
	return results, nil
}

// run lets the tenants of a mix run beside each other, with the agent's loop over their shares.
func (b *bench) run(ctx context.Context, m mix) ([]result, error) {
	dir, err := os.MkdirTemp(b.dir, "mix-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	results, shares := make([]result, len(m)), make([]usage.Share, len(m))
	folder := func(i int) string { return filepath.Join(dir, "tenant-"+strconv.Itoa(i)) }
	for i, t := range m {
		results[i].share = float64(t.percent)
		if results[i].demand, err = b.demand(ctx, t.workload); err != nil {
			return nil, err
		}
		quota := cdi.Quota{MemoryBytes: shareMemory, CorePercent: t.percent}
		path, err := makeShare(folder(i), b.device.UUID, quota)
		if err != nil {
			return nil, err
		}
		shares[i] = usage.Share{Claim: "gpucheck/" + strconv.Itoa(i), Request: "gpu", GPU: b.device.UUID, Model: b.device.ProductName, Dir: path,
			MemoryBytes: shareMemory, CorePercent: t.percent}
	}
	end := b.follow(ctx, shares)
	in, err := windowAfter(b.options.warmUp, b.options.measured)
	if err != nil {
		end()
		return nil, err
	}
	running, err := b.start(ctx, m, in, folder)
	for i, cmd := range running {
		used, waitErr := said(cmd)
		err, results[i].used = errors.Join(err, waitErr), used
	}
	for i, seen := range end() {
		results[i].k = float64(seen.CorrectionPermille) / 1000
		err = errors.Join(err, seen.Err)
	}
	return results, err
}

// start starts the tenants. Where one cannot be started the others run to their end.
func (b *bench) start(ctx context.Context, m mix, in window, folder func(int) string) (running []*exec.Cmd, err error) {
	for i, t := range m {
		cmd := b.spin(ctx, folder(i), true, b.args(t.workload, in)...)
		if err := cmd.Start(); err != nil {
			return running, err
		}
		running = append(running, cmd)
	}
	return running, nil
}

// follow runs the agent's loop until end is called, which says what it saw last.
func (b *bench) follow(ctx context.Context, shares []usage.Share) (end func() []usage.ShareUsage) {
	loop := usage.New(usage.Config{Hardware: b.monitor, Degraded: func(note string) { fmt.Fprintln(os.Stderr, note) }})
	loop.Follow(shares)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		loop.Run(ctx)
		close(done)
	}()
	return func() []usage.ShareUsage {
		cancel()
		<-done
		if mib, ok := loop.ContextMiB(b.device.ProductName); ok {
			b.contextMiB = mib
		}
		return loop.Shares()
	}
}
