package nvml

import (
	"context"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/internal/gpu"
)

// watching is a watch that runs.
type watching struct {
	*testing.T
	driver *simdriver.Root
	node   *Node
	watch  *Watch
	uuids  []string
	told   chan gpu.Event
}

func watch(t *testing.T, description string) *watching {
	t.Helper()
	driver := root(t, description)
	node := New(Driver{Root: driver.Path, RootMount: driver.Path})
	w := &watching{T: t, driver: driver, node: node, watch: node.Watch(), told: make(chan gpu.Event, 100)}
	devices, _, err := node.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range devices {
		w.uuids = append(w.uuids, device.UUID)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.watch.Run(ctx, func(e gpu.Event) { w.told <- e })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

// next waits for an event.
func (w *watching) next() gpu.Event {
	w.Helper()
	select {
	case event := <-w.told:
		return event
	case <-time.After(20 * time.Second):
		w.Fatal("no event")
		return gpu.Event{}
	}
}

func (w *watching) fault(faults ...simdriver.Fault) {
	w.Helper()
	if err := w.driver.Fault(faults...); err != nil {
		w.Fatal(err)
	}
}

// isOpen says whether the watch has NVML open.
func (w *watching) isOpen() bool {
	if w.watch.open.TryLock() {
		w.watch.open.Unlock()
		return false
	}
	return true
}

func (w *watching) eventually(what string, is func() bool) {
	w.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline:
			w.Fatal("not " + what)
		case <-tick.C:
		}
	}
}

func TestWatchTellsOfTheGPUsThatAreWatched(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	w := watch(t, "t4x4")
	if w.isOpen() {
		t.Error("NVML is open although nothing is watched")
	}
	w.watch.Follow(w.uuids[1:2])
	if event := w.next(); event != (gpu.Event{}) {
		t.Errorf("got %+v, want that something may have been missed", event)
	}
	w.fault(simdriver.XID(0, 79), simdriver.XID(1, 31), simdriver.Event(1, nvmllib.EventTypeDoubleBitEccError), simdriver.Event(1, nvmllib.EventTypeGpuRecoveryAction))
	for _, want := range []gpu.Event{
		{GPU: w.uuids[1], Fault: gpu.XID(31)}, {GPU: w.uuids[1], Fault: gpu.DoubleBitECC}, {GPU: w.uuids[1]},
	} {
		if event := w.next(); event != want {
			t.Errorf("got %+v, want %+v", event, want)
		}
	}
	w.watch.Follow(w.uuids[:2]) // one more, and nothing of the other is missed
	w.eventually("told of the GPU that came", func() bool {
		w.fault(simdriver.XID(0, 48))
		select {
		case event := <-w.told:
			return event == gpu.Event{GPU: w.uuids[0], Fault: gpu.XID(48)}
		case <-time.After(time.Second):
			return false
		}
	})
	w.watch.Follow(nil)
	w.eventually("closed when nothing is watched", func() bool { return !w.isOpen() })
}

func TestWatchOutlivesALostGPU(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	w := watch(t, "t4x4")
	w.watch.Follow(w.uuids[:2])
	w.next()
	w.fault(simdriver.XID(0, 79), simdriver.LoseGPU(0))
	if event := w.next(); event != (gpu.Event{GPU: w.uuids[0], Fault: gpu.XID(79)}) {
		t.Errorf("got %+v", event)
	}
	for range 2 { // that the wait failed, and that events may have been missed
		if event := w.next(); event != (gpu.Event{}) {
			t.Errorf("got %+v", event)
		}
	}
	w.fault(simdriver.XID(1, 95))
	if event := w.next(); event != (gpu.Event{GPU: w.uuids[1], Fault: gpu.XID(95)}) {
		t.Errorf("got %+v", event)
	}
}

// A change of MIG mode may fail while somebody has NVML open.
func TestWatchLetsGoOfNVMLForAChangeOfMode(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	w := watch(t, "h100x8")
	w.watch.Follow(w.uuids[1:2])
	w.next()
	if err := w.node.SetMIGMode(w.uuids[0], true); err != nil {
		t.Fatal(err)
	}
	if event := w.next(); event != (gpu.Event{}) { // it has opened NVML again
		t.Errorf("got %+v", event)
	}
}

func TestWatchLetsGoOfNVMLWhileItIsPaused(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	w := watch(t, "t4x4")
	w.watch.Follow(w.uuids[:1])
	w.next()
	resume := w.node.pauseWatches()
	lib, err := w.node.library()
	if err != nil {
		t.Fatal(err)
	}
	if _, ret := lib.DeviceGetCount(); ret != nvmllib.ERROR_UNINITIALIZED {
		t.Errorf("NVML is open while the watch is paused: %v", ret)
	}
	resume()
	w.next()
	w.fault(simdriver.XID(0, 62))
	if event := w.next(); event != (gpu.Event{GPU: w.uuids[0], Fault: gpu.XID(62)}) {
		t.Errorf("got %+v", event)
	}
}
