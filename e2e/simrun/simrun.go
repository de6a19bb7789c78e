// Package simrun runs tenants beside each other on a simulated GPU and a virtual clock, and says how long the GPU worked
// for each. What holds them to anything is the caller's: a library to preload, an agent that is called at each tick.
package simrun

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"aliquot.dev/aliquot/e2e/simclock"
	"aliquot.dev/aliquot/e2e/simdriver"
)

//go:embed native
var sources embed.FS

// Lookahead is how far one tenant may be before another, see simclock.
const Lookahead = 200 * time.Microsecond

// Programs are what a run consists of.
type Programs struct {
	clock, tenant, clockwork string
}

// Build compiles the programs into dir.
func Build(ctx context.Context, dir string) (Programs, error) {
	p := Programs{tenant: filepath.Join(dir, "tenant"), clockwork: filepath.Join(dir, "clockwork")}
	var err error
	if p.clock, err = simclock.Build(ctx, dir); err != nil {
		return Programs{}, err
	}
	for _, out := range []string{p.tenant, p.clockwork} {
		if err := build(ctx, filepath.Base(out), out); err != nil {
			return Programs{}, err
		}
	}
	return p, nil
}

// BuildTenant compiles the program that a tenant is, for other uses than here.
func BuildTenant(ctx context.Context, path string) error {
	return build(ctx, "tenant", path)
}

func build(ctx context.Context, name, path string) error {
	source, err := sources.ReadFile("native/" + name + ".c")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", path, "-x", "c", "-", "-x", "none", "-ldl")
	cmd.Stdin = bytes.NewReader(source)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w\n%s", name, err, output)
	}
	return nil
}

// Tenant is one process on the GPU.
type Tenant struct {
	Args    []string // in the words of native/tenant.c
	Dir     string   // where it runs
	Preload []string // libraries
}

// Sample is one that NVML has of a process.
type Sample struct {
	PID       int
	TimeUS    uint64 // µs since the epoch
	SMPercent uint32
}

// Tick is the simulated machine at a moment; the clock stands still meanwhile.
type Tick struct {
	Clock   uint64          // ns, what CLOCK_MONOTONIC says to the tenants
	Elapsed time.Duration   // since the start
	Busy    []time.Duration // GPU time that each tenant had, 0 for one that has ended
	PIDs    []int
	Samples []Sample // new since the tick before
}

// Run runs the tenants for so long, calls each at every tick, and returns the ticks.
func (p Programs) Run(ctx context.Context, root *simdriver.Root, tenants []Tenant, length, tick time.Duration, each func(Tick) error) (ticks []Tick, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "simrun-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	clock, err := simclock.New(p.clock, filepath.Join(dir, "clock"), len(tenants)+1, Lookahead)
	if err != nil {
		return nil, err
	}
	var members []*exec.Cmd
	for i, t := range tenants {
		// Longer than what is looked at, so that all are there at the last tick.
		cmd := exec.CommandContext(ctx, p.tenant, append([]string{fmt.Sprintf("end_ms=%d", (length + tick).Milliseconds())}, t.Args...)...)
		cmd.Dir = t.Dir
		cmd.Env = environ(root, clock, i, t.Preload...)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		members = append(members, cmd)
		defer func() {
			if err != nil {
				cancel()
			}
			err = errors.Join(err, cmd.Wait())
		}()
	}
	f := follower{members: members, each: each, tick: tick}
	if err := f.follow(ctx, p.clockwork, environ(root, clock, len(tenants)), length); err != nil {
		return nil, err
	}
	return f.ticks, nil
}

func environ(root *simdriver.Root, clock *simclock.Clock, member int, preload ...string) []string {
	return append(append(os.Environ(), "LD_LIBRARY_PATH="+root.LibraryDir()), clock.Env(member, preload...)...)
}

// follower is told of each tick by the program that is a member of the clock.
type follower struct {
	members []*exec.Cmd
	each    func(Tick) error
	tick    time.Duration
	ticks   []Tick
}

func (f *follower) follow(ctx context.Context, program string, env []string, length time.Duration) error {
	args := []string{strconv.FormatInt(f.tick.Milliseconds(), 10), strconv.FormatInt(length.Milliseconds(), 10)}
	for _, member := range f.members {
		args = append(args, strconv.Itoa(member.Process.Pid))
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	var now Tick
	for lines.Scan() {
		done, err := now.read(lines.Text())
		if err == nil && done {
			err = f.end(now)
			now = Tick{}
			if err == nil {
				_, err = io.WriteString(in, "go\n")
			}
		}
		if err != nil {
			return errors.Join(err, cmd.Cancel(), cmd.Wait())
		}
	}
	return errors.Join(lines.Err(), cmd.Wait())
}

// read takes a line of clockwork.c; done says that the tick is whole.
func (t *Tick) read(line string) (done bool, err error) {
	if line == "end" {
		return true, nil
	}
	if _, err := fmt.Sscanf(line, "tick %d", &t.Clock); err == nil {
		return false, nil
	}
	var busy int64
	if _, err := fmt.Sscanf(line, "busy %d", &busy); err == nil {
		t.Busy = append(t.Busy, time.Duration(busy))
		return false, nil
	}
	var s Sample
	if _, err := fmt.Sscanf(line, "sample %d %d %d", &s.PID, &s.TimeUS, &s.SMPercent); err != nil {
		return false, fmt.Errorf("clockwork says %q: %w", line, err)
	}
	t.Samples = append(t.Samples, s)
	return false, nil
}

func (f *follower) end(now Tick) error {
	now.Elapsed = time.Duration(len(f.ticks)+1) * f.tick
	for _, member := range f.members {
		now.PIDs = append(now.PIDs, member.Process.Pid)
	}
	f.ticks = append(f.ticks, now)
	if f.each == nil {
		return nil
	}
	return f.each(now)
}

// Used is the part of the GPU's time that a tenant had between two times since the start, in percent. Both are rounded up to
// a tick.
func Used(ticks []Tick, tenant int, from, to time.Duration) float64 {
	first, last := at(ticks, from), at(ticks, to)
	return 100 * float64(last.Busy[tenant]-first.Busy[tenant]) / float64(last.Elapsed-first.Elapsed)
}

func at(ticks []Tick, when time.Duration) Tick {
	for _, t := range ticks {
		if t.Elapsed >= when {
			return t
		}
	}
	return ticks[len(ticks)-1]
}
