package usage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/internal/gpu"
)

// Share is one prepared share of a GPU.
type Share struct {
	Claim       string // namespace/name
	Request     string // the claim's request that it was allocated for
	GPU         string // UUID
	Model       string // of the GPU; empty if it is not known now
	Dir         string // where its files are; there is one share a directory
	MemoryBytes uint64
	CorePercent int
	Burst       bool
}

// ShareUsage is what one share used when it was last looked at.
type ShareUsage struct {
	Share
	Decision

	ActualBytes  uint64 // of the GPU's memory, by NVML
	UsedBytes    uint64 // as charged
	DeniedAllocs uint64
	Launches     uint64
	ThrottleNS   uint64
	Processes    []ProcessUsage // living ones, in order of slot
	Err          error          // why it could not be looked at, or its page not be written; the rest is then what was known
}

// ProcessUsage is what one process of a share used.
type ProcessUsage struct {
	HostPID     int    // 0 where it cannot be told
	UsedBytes   uint64 // as charged
	PeakBytes   uint64 // the most that was charged at once
	OverheadMiB uint32 // beyond what its allocations are charged, by NVML; 0: not measured
}

// Hardware says what processes do on the node's GPUs. Any of its calls may hang with the driver.
type Hardware interface {
	Processes(uuid string) ([]gpu.Process, error)
	// Utilization lists samples newer than sinceUS, µs since the epoch.
	Utilization(uuid string, sinceUS uint64) ([]gpu.Utilization, error)
	// Release lets go of the driver until the next call.
	Release()
}

// Config is what New needs.
type Config struct {
	Hardware Hardware
	Interval time.Duration // between two looks; 0 is half a second
	// Degraded is told once when the shares of a GPU, or one share, cannot be measured any more or not be told. nil tells nobody.
	Degraded func(note string)

	patience time.Duration // how long an answer of Hardware is awaited
}

// Loop looks at the node's shares and writes their agent pages.
type Loop struct {
	config  Config
	started time.Time
	changed chan struct{} // has one element when Follow was called since the last look

	mu       sync.Mutex // guards what follows
	shares   []Share
	seen     []ShareUsage
	contexts map[string]uint32 // MiB that a context costs, by model

	// What only the loop itself uses.
	followed map[string]*followed // by directory
	gpus     map[string]*measured // by UUID
	degraded map[string]string    // what is told to be wrong, by what it is about
	asked    bool                 // the hardware, since it was last released
}

// New returns a loop that touches nothing until Run.
func New(config Config) *Loop {
	if config.Interval == 0 {
		config.Interval = 500 * time.Millisecond
	}
	if config.patience == 0 {
		config.patience = time.Second
	}
	if config.Degraded == nil {
		config.Degraded = func(string) {}
	}
	return &Loop{
		config:   config,
		started:  time.Now(),
		changed:  make(chan struct{}, 1),
		contexts: map[string]uint32{},
		followed: map[string]*followed{},
		gpus:     map[string]*measured{},
		degraded: map[string]string{},
	}
}

// Follow says which shares there are now. Those that stay go on as they were; what a share that came or went means for
// the others is told to them at once.
func (l *Loop) Follow(shares []Share) {
	l.mu.Lock()
	l.shares = slices.Clone(shares)
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// Shares is what each share used when it was last looked at, in the order in which they are followed.
func (l *Loop) Shares() []ShareUsage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// ContextMiB is what a context was found to cost on GPUs of a model, false while no process was measured on one.
func (l *Loop) ContextMiB(model string) (uint32, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mib, ok := l.contexts[model]
	return mib, ok
}

// Run looks at the shares until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	defer l.close()
	ticker := time.NewTicker(l.config.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-l.changed:
		}
		l.look(ctx, time.Since(l.started))
	}
}

// look looks at each share once.
func (l *Loop) look(ctx context.Context, now time.Duration) {
	l.mu.Lock()
	shares := slices.Clone(l.shares)
	l.mu.Unlock()
	l.forget(shares)
	byGPU := map[string][]Share{}
	for _, s := range shares {
		byGPU[s.GPU] = append(byGPU[s.GPU], s)
	}
	found := map[string]ShareUsage{}
	for _, s := range shares { // in their order, each GPU once
		if byGPU[s.GPU] == nil {
			continue
		}
		for _, u := range l.lookAt(ctx, now, s.GPU, byGPU[s.GPU]) {
			found[u.Dir] = u
		}
		delete(byGPU, s.GPU)
	}
	seen := make([]ShareUsage, 0, len(shares))
	for _, s := range shares {
		seen = append(seen, found[s.Dir])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = seen
}

// forget lets go of shares and GPUs that are no more, and of the driver if nothing is left that it could be asked of.
func (l *Loop) forget(shares []Share) {
	dirs, gpus := map[string]bool{}, map[string]bool{}
	for _, s := range shares {
		dirs[s.Dir], gpus[s.GPU] = true, true
	}
	for dir, f := range l.followed {
		if !dirs[dir] {
			f.close()
			delete(l.followed, dir)
			delete(l.degraded, dir)
		}
	}
	for uuid := range l.gpus {
		if !gpus[uuid] {
			delete(l.gpus, uuid)
			delete(l.degraded, uuid)
		}
	}
	if len(shares) == 0 && l.asked {
		l.config.Hardware.Release()
		l.asked = false
	}
}

func (l *Loop) close() {
	l.forget(nil)
}

// judge tells when something begins to be wrong, and logs when it is well again. What it is about is a GPU's UUID or a
// share's directory.
func (l *Loop) judge(ctx context.Context, about string, err error) {
	told, was := l.degraded[about]
	switch {
	case err != nil && !was:
		l.degraded[about] = err.Error()
		klog.FromContext(ctx).Error(err, "Limits of shares are degraded")
		l.config.Degraded(fmt.Sprintf("limiter degraded: %v", err))
	case err == nil && was:
		delete(l.degraded, about)
		klog.FromContext(ctx).Info("Limits of shares are well again", "after", told)
	}
}

// name is how people know a share.
func (s Share) name() string {
	return strings.TrimSuffix(s.Claim+"/"+s.Request, "/")
}
