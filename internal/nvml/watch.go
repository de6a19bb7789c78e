package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/internal/gpu"
)

// Watch tells what happens to GPUs. It has NVML open while there is a GPU to watch, and only then: a driver cannot be
// unloaded, nor a GPU reset, while somebody has it open.
type Watch struct {
	node *Node

	mu      sync.Mutex
	wanted  []string      // UUIDs, sorted
	changed chan struct{} // closed when wanted changes

	open     sync.Mutex   // held while NVML is open
	unwanted atomic.Int32 // how many wait for open
}

const (
	// waitMS is for how long NVML waits for an event: nothing else ends its wait, and so whoever wants NVML closed waits as long.
	waitMS = 500
	// retryWatch is how soon a watch that failed is tried again, unless it is to watch something else.
	retryWatch = 5 * time.Second
)

// watchedEvents are the types that are asked for, as far as a GPU supports them.
const watchedEvents = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction

// Watch returns a watch that watches nothing yet.
func (n *Node) Watch() *Watch {
	w := &Watch{node: n, changed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watches = append(n.watches, w)
	return w
}

// pauseWatches closes NVML wherever it is open for events, until the returned function is called.
func (n *Node) pauseWatches() func() {
	n.mu.Lock()
	watches := slices.Clone(n.watches)
	n.mu.Unlock()
	for _, w := range watches {
		w.unwanted.Add(1)
		w.open.Lock()
	}
	return func() {
		for _, w := range watches {
			w.unwanted.Add(-1)
			w.open.Unlock()
		}
	}
}

// Follow says which GPUs are watched from now on.
func (w *Watch) Follow(uuids []string) {
	uuids = slices.Sorted(slices.Values(uuids))
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(uuids, w.wanted) {
		return
	}
	w.wanted = uuids
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *Watch) wants() (uuids []string, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted, w.changed
}

// Run tells of events until ctx ends, one at a time. An event without a GPU says that some may have been missed, since
// NVML was not open or failed.
func (w *Watch) Run(ctx context.Context, tell func(gpu.Event)) {
	for ctx.Err() == nil {
		uuids, changed := w.wants()
		var again <-chan time.Time
		if len(uuids) > 0 {
			err := w.listen(ctx, tell)
			if err == nil {
				continue
			}
			if !errors.Is(err, errNoEvents) {
				klog.FromContext(ctx).Error(err, "Watch GPUs for events")
				tell(gpu.Event{})
				again = time.After(retryWatch)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		}
	}
}

// errNoEvents is wrapped where no GPU can tell of events.
var errNoEvents = errors.New("GPU tells of no events")

// listen has NVML open until a GPU is not to be watched any more, or NVML is to be closed.
func (w *Watch) listen(ctx context.Context, tell func(gpu.Event)) error {
	w.open.Lock()
	defer w.open.Unlock()
	if w.unwanted.Load() > 0 {
		return nil
	}
	lib, shutdown, err := w.node.open()
	if err != nil {
		return err
	}
	defer shutdown()
	set, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("create event set: %w", ret)
	}
	defer func() { _ = set.Free() }()
	uuids, changed := w.wants()
	watched := map[nvml.Device]string{}
	if err := register(lib, set, uuids, watched); len(watched) == 0 {
		return err
	}
	tell(gpu.Event{})
	for ctx.Err() == nil && w.unwanted.Load() == 0 {
		data, ret := set.Wait(waitMS)
		switch {
		case ret == nvml.SUCCESS:
			tell(eventOf(data, watched))
		case !errors.Is(ret, nvml.ERROR_TIMEOUT):
			return fmt.Errorf("wait for events: %w", ret)
		}
		if !isClosed(changed) {
			continue
		}
		before := uuids
		if uuids, changed = w.wants(); !containsAll(uuids, before) {
			return nil // closing NVML is the only way to let go of a GPU
		}
		if err := register(lib, set, without(uuids, before), watched); err != nil {
			return err
		}
	}
	return nil
}

func containsAll(all, some []string) bool {
	return len(without(some, all)) == 0
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// register asks for the events of GPUs. One that cannot be asked, since it is lost or cannot tell, does not keep the
// others from it.
func register(lib nvml.Interface, set nvml.EventSet, uuids []string, watched map[nvml.Device]string) error {
	var errs []error
	for _, uuid := range uuids {
		handle, ret := lib.DeviceGetHandleByUUID(uuid)
		if ret != nvml.SUCCESS {
			errs = append(errs, fmt.Errorf("open GPU %s: %w", uuid, ret))
			continue
		}
		supported, ret := handle.GetSupportedEventTypes()
		if supported &= watchedEvents; errors.Is(ret, nvml.ERROR_NOT_SUPPORTED) || supported == 0 {
			errs = append(errs, fmt.Errorf("%w: %s", errNoEvents, uuid))
			continue
		}
		if ret = handle.RegisterEvents(supported, set); ret != nvml.SUCCESS {
			errs = append(errs, fmt.Errorf("ask for the events of GPU %s: %w", uuid, ret))
			continue
		}
		watched[handle] = uuid
	}
	return errors.Join(errs...)
}

func eventOf(data nvml.EventData, watched map[nvml.Device]string) gpu.Event {
	event := gpu.Event{GPU: watched[data.Device]}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		event.Fault = gpu.XID(data.EventData)
	case nvml.EventTypeDoubleBitEccError:
		event.Fault = gpu.DoubleBitECC
	}
	return event
}
