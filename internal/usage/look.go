package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/gpu"
)

// measured is what the loop keeps of a GPU.
type measured struct {
	controller *Controller
	since      uint64        // time of the newest sample, µs since the epoch
	failing    time.Duration // since when NVML fails; 0: it answers
	err        error         // with what
	retry      time.Duration // not to be asked before
	pending    chan answer   // what was asked and not yet answered
}

// answer is what NVML says of one GPU.
type answer struct {
	processes      []gpu.Process
	processesErr   error
	utilization    []gpu.Utilization
	utilizationErr error
}

// retryAfter is how long NVML is left alone once it is known to fail.
const retryAfter = 5 * time.Second

// errNoAnswer is what NVML's silence is taken for.
var errNoAnswer = errors.New("NVML does not answer")

// ask asks NVML of a GPU, in a goroutine of its own: a driver may hang, and the other GPUs' shares must not wait for it.
// There is one question at a time.
func (l *Loop) ask(ctx context.Context, uuid string, g *measured) answer {
	wait := time.Duration(0) // it was waited for before
	if g.pending == nil {
		wait = l.config.patience
		g.pending = make(chan answer, 1)
		l.asked = true
		go func(since uint64, reply chan<- answer) {
			var a answer
			a.processes, a.processesErr = l.config.Hardware.Processes(uuid)
			a.utilization, a.utilizationErr = l.config.Hardware.Utilization(uuid, since)
			reply <- a
		}(g.since, g.pending)
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	select {
	case a := <-g.pending:
		g.pending = nil
		return a
	case <-ctx.Done():
	case <-timeout.C:
	}
	err := fmt.Errorf("GPU %s: %w", uuid, errNoAnswer)
	return answer{processesErr: err, utilizationErr: err}
}

// lookAt looks at the shares of one GPU: at their regions, at what NVML says, at their regions again, and then it writes their
// pages.
func (l *Loop) lookAt(ctx context.Context, now time.Duration, uuid string, shares []Share) []ShareUsage {
	g, ok := l.gpus[uuid]
	if !ok {
		g = &measured{controller: NewController()}
		l.gpus[uuid] = g
	}
	seen, kept, double := make([]ShareUsage, len(shares)), make([]*followed, len(shares)), make([]looks, len(shares))
	for i, s := range shares {
		kept[i] = l.follow(s)
		double[i].before, seen[i].Err = kept[i].read()
	}
	a := l.askIfDue(ctx, now, uuid, g)
	for i := range shares {
		if seen[i].Err == nil {
			double[i].after, seen[i].Err = kept[i].read()
		}
		double[i].slots = kept[i].slots
	}
	actual := make([]uint64, len(shares))
	if a.processesErr == nil {
		actual = measure(double, a.bytes())
		l.learn(shares, kept)
	}
	sample := Sample{Measured: a.utilizationErr == nil, Utilization: a.utilization}
	for i, s := range shares {
		sample.Tenants = append(sample.Tenants, kept[i].tenant(s, double[i].before))
	}
	for i, d := range g.controller.Step(now, sample) {
		err := errors.Join(seen[i].Err, kept[i].write(d, actual[i]))
		seen[i] = kept[i].usageOf(shares[i], d, actual[i])
		seen[i].Err = err
		l.judge(ctx, shares[i].Dir, unlessGone(shares[i], err))
	}
	return seen
}

// unlessGone is nil for a share whose files are not there: it is being prepared or unprepared, and no container has
// them.
func unlessGone(s Share, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, cdi.ErrRemoved) {
		return nil
	}
	return fmt.Errorf("share of claim %s: %w", s.name(), err)
}

func (a answer) bytes() map[int]uint64 {
	bytes := map[int]uint64{}
	for _, p := range a.processes {
		bytes[p.PID] += p.Bytes
	}
	return bytes
}

// askIfDue asks NVML unless it is known to fail and was asked a moment ago, and judges its answer. A failure that is soon over, as
// when the driver was restarted, is not worth telling.
func (l *Loop) askIfDue(ctx context.Context, now time.Duration, uuid string, g *measured) answer {
	if now < g.retry {
		return answer{processesErr: g.err, utilizationErr: g.err}
	}
	a := l.ask(ctx, uuid, g)
	for _, s := range a.utilization {
		g.since = max(g.since, s.TimeUS)
	}
	g.err = cmp.Or(a.processesErr, a.utilizationErr) // one is enough to say what is wrong
	switch {
	case g.err == nil:
		g.failing = 0
		l.judge(ctx, uuid, nil)
	case g.failing == 0:
		g.failing = max(now, 1)
	case now-g.failing >= degradedAfter:
		g.retry = now + retryAfter
		l.judge(ctx, uuid, g.err)
	}
	return a
}
