package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// fakeWatcher remembers whom it is to follow and tells what it is given.
type fakeWatcher struct {
	followed []string
	events   chan gpu.Event
}

func (w *fakeWatcher) Follow(uuids []string) { w.followed = slices.Sorted(slices.Values(uuids)) }

func (w *fakeWatcher) Run(ctx context.Context, tell func(gpu.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-w.events:
			tell(event)
		}
	}
}

// ward is a driver whose GPUs fall ill.
type ward struct {
	*rig
	*testing.T
	driver *Driver
	at     time.Time
	start  string
}

func newWard(t *testing.T) *ward {
	w := &ward{rig: newRig(t, "h100x8"), T: t, at: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	w.config.Taints = map[gpu.Severity]resourceapi.DeviceTaintEffect{gpu.Fatal: resourceapi.DeviceTaintEffectNoExecute}
	for i := range w.hardware.devices {
		w.hardware.devices[i].Health = gpu.Health{}
	}
	w.restart()
	return w
}

func (w *ward) restart() {
	w.Helper()
	d, err := New(w.config)
	if err != nil {
		w.Fatal(err)
	}
	d.health.now, d.health.start = func() time.Time { return w.at }, func() string { return w.start }
	w.driver = d
	if err := d.loadRecords(); err != nil {
		w.Fatal(err)
	}
	if err := d.health.load(); err != nil {
		w.Log(err)
	}
	w.discover()
}

func (w *ward) discover() {
	w.Helper()
	if err := w.driver.discover(quiet(w)); err != nil {
		w.Fatal(err)
	}
}

func (w *ward) happens(index int, fault gpu.Fault) {
	w.Helper()
	w.driver.happened(quiet(w), gpu.Event{GPU: w.hardware.devices[index].UUID, Fault: fault})
}

// taints are those that are published, by device.
func (w *ward) taints() map[string]string {
	resources, _ := w.driver.unpublished()
	taints := map[string]string{}
	for _, slice := range resources.Pools["node/gpus"].Slices {
		for _, device := range slice.Devices {
			for _, taint := range device.Taints {
				taints[device.Name] += taint.Value + ":" + string(taint.Effect)
			}
		}
	}
	return taints
}

// of names all devices of a GPU.
func (w *ward) of(index int, taint string) map[string]string {
	taints := map[string]string{}
	for _, device := range inventory.Devices(w.hardware.devices[index]) {
		taints[device.Name] = taint
	}
	return taints
}

func (w *ward) hasTaints(when string, want map[string]string) {
	w.Helper()
	if diff := cmp.Diff(want, w.taints()); diff != "" {
		w.Errorf("%s: taints (-want +got):\n%s", when, diff)
	}
}

func TestWhatWasToldIsKept(t *testing.T) {
	w := newWard(t)
	w.happens(1, gpu.XID(31))
	w.hasTaints("after an application's error", map[string]string{})
	w.happens(1, gpu.XID(48))
	w.hasTaints("after a double-bit error", w.of(1, "xid-48:NoSchedule"))
	w.happens(1, gpu.XID(79))
	w.happens(1, gpu.XID(79))
	w.hasTaints("after a worse one", w.of(1, "xid-79:NoExecute"))
	if diff := cmp.Diff([]string{
		"Warning GPUFault GPU " + h100GPU1 + ": XID 31: a process accessed memory that is not its own",
		"Warning GPUUnhealthy GPU " + h100GPU1 + ": XID 48: double-bit ECC error; it has taint gpu.aliquot.dev/unhealthy=xid-48:NoSchedule",
		"Warning GPUUnhealthy GPU " + h100GPU1 + ": XID 79: the GPU has fallen off the bus; it has taint gpu.aliquot.dev/unhealthy=xid-79:NoExecute",
	}, w.told()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	w.at = w.at.Add(time.Hour)
	w.discover()
	w.hasTaints("while the driver cannot tell", w.of(1, "xid-79:NoExecute"))
	if diff := cmp.Diff(map[string]float64{
		"gpu_faults xid-48 Degraded " + h100GPU1: 1, "gpu_faults xid-79 Fatal " + h100GPU1: 1,
	}, counts(t, w.driver)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	before, _ := w.driver.unpublished()
	w.restart()
	w.hasTaints("after a restart", w.of(1, "xid-79:NoExecute"))
	after, _ := w.driver.unpublished()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("published after a restart (-before +after):\n%s", diff)
	}
	if told := w.told(); len(told) > 0 {
		t.Errorf("told again: %q", told)
	}
	w.start = "another"
	w.restart()
	w.hasTaints("after a reboot", map[string]string{})
	w.happens(1, gpu.XID(79))
	w.restart()
	w.hasTaints("when it happened after a reboot", w.of(1, "xid-79:NoExecute"))
	w.start = "a third"
	w.discover()
	w.hasTaints("after the driver was loaded anew", map[string]string{})
	w.restart()
	w.hasTaints("after that and a restart", map[string]string{})
}

func TestGPUIsWellWhenItsDriverSaysSo(t *testing.T) {
	w := newWard(t)
	w.happens(1, gpu.XID(95))
	w.hardware.devices[1].Health.Sound = true
	w.discover()
	w.hasTaints("when the driver may not know yet", w.of(1, "xid-95:NoExecute"))
	w.at = w.at.Add(time.Minute)
	w.happens(1, gpu.XID(95))
	w.at = w.at.Add(time.Second)
	w.discover()
	w.hasTaints("when it happened again", w.of(1, "xid-95:NoExecute"))
	w.at = w.at.Add(time.Minute)
	w.hardware.devices[1].Health = gpu.Health{Faults: []gpu.Fault{{Kind: "needs-reset", Severity: gpu.Fatal, Note: "reset it"}}}
	w.discover()
	w.hasTaints("while it is to be reset", w.of(1, "xid-95:NoExecute"))
	w.told()
	w.hardware.devices[1].Health = gpu.Health{Sound: true}
	w.discover()
	w.hasTaints("when it was reset", map[string]string{})
	if told := w.told(); len(told) != 1 || !strings.HasPrefix(told[0], "Normal GPUHealthy GPU "+h100GPU1+" is well again; it was tainted since 2026-11-30T12:00:00Z: XID 95") {
		t.Errorf("told %q", told)
	}
}

func TestWhatIsSeenIsOverWhenItIsNotSeen(t *testing.T) {
	w := newWard(t)
	w.hardware.devices[1].Health.Faults = []gpu.Fault{{Kind: "row-remap-failure", Severity: gpu.Degraded, Note: "broken"}}
	w.hardware.devices[2].Health.Faults = []gpu.Fault{{Kind: "thermal-slowdown", Severity: gpu.Informs, Note: "hot"}}
	w.discover()
	before, _ := w.driver.unpublished()
	w.at = w.at.Add(time.Hour)
	w.discover()
	if after, _ := w.driver.unpublished(); cmp.Diff(before, after) != "" {
		t.Errorf("published when it was seen again (-before +after):\n%s", cmp.Diff(before, after))
	}
	w.hasTaints("while it is seen", w.of(1, "row-remap-failure:NoSchedule"))
	if told := w.told(); len(told) != 2 || !slices.Contains(told, "Warning GPUFault GPU "+w.hardware.devices[2].UUID+": hot") {
		t.Errorf("told %q", told)
	}
	w.restart()
	w.hasTaints("after a restart", w.of(1, "row-remap-failure:NoSchedule"))
	w.hardware.devices[1].Health.Faults = nil
	w.discover()
	w.hasTaints("when it is not seen", map[string]string{})
}

func TestGPUThatDoesNotAnswerStaysPublishedForItsPods(t *testing.T) {
	w := newWard(t)
	all := w.hardware.devices
	held := claimOf("held", share("gpu", "gpu-7", "s1", "10Gi", "0"))
	w.allocate(t, held)
	mustPrepare(t, w.driver, held)
	w.hardware.devices = slices.Concat(all[:2], all[3:7]) // 2, on which there is nothing, and 7
	w.hardware.skipped = []error{errors.New("GPU 7: timeout")}
	w.discover()
	w.hardware.devices, all = all, w.hardware.devices
	w.hasTaints("while nobody knows why", w.of(7, "silent:NoSchedule"))
	names := published(w.driver)
	w.hardware.devices, all = all, w.hardware.devices
	if slices.Contains(names, "gpu-2") || !slices.Contains(names, "gpu-7") {
		t.Errorf("published %v, want gpu-7 and not gpu-2", names)
	}
	w.hardware.skipped = []error{gpu.LostError(7, errors.New("GPU 7: lost"))}
	w.discover()
	w.restart()
	w.hardware.devices, w.hardware.skipped = all, nil
	w.hasTaints("when it is lost", w.of(7, "lost:NoExecute"))
	if err := unprepare(t, w.driver, held); err != nil {
		t.Fatal(err)
	}
	w.happens(7, gpu.XID(79))
	w.discover()
	w.hasTaints("when it answers after a reset", map[string]string{})
}

func published(d *Driver) []string {
	resources, _ := d.unpublished()
	var names []string
	for _, slice := range resources.Pools["node/gpus"].Slices {
		for _, device := range slice.Devices {
			names = append(names, device.Name)
		}
	}
	return names
}

func TestLostGPUGivesWayToTheOneThatHasItsName(t *testing.T) {
	w := newWard(t)
	w.happens(6, gpu.XID(79))
	w.hardware.devices = slices.Concat(w.hardware.devices[:6], w.hardware.devices[7:])
	w.hardware.devices[6].Index = 6
	w.discover()
	w.hasTaints("when another is gpu-6", map[string]string{})
	if names := published(w.driver); slices.Contains(names, "gpu-7") {
		t.Errorf("published %v", names)
	}
}

func TestTornFileOfHealthCostsOnlyWhatWasTold(t *testing.T) {
	w := newWard(t)
	w.happens(1, gpu.XID(79))
	w.hardware.devices[2].Health.Faults = []gpu.Fault{{Kind: "needs-reset", Severity: gpu.Fatal, Note: "reset it"}}
	path := filepath.Join(w.config.DataDir, "health.json")
	for _, torn := range []string{"", "{", `{"version":2}`, "null"} {
		if err := os.WriteFile(path, []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := newHealth(path, 0).load(); err == nil {
			t.Errorf("%q was read", torn)
		}
		w.restart()
		w.hasTaints("after "+torn, w.of(2, "needs-reset:NoExecute"))
		if err := newHealth(path, 0).load(); err != nil {
			t.Errorf("after %q nothing was kept: %v", torn, err)
		}
	}
}

func TestHealthIsKeptWhenTheDiskWorksAgain(t *testing.T) {
	w := newWard(t)
	path := filepath.Join(w.config.DataDir, "health.json")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.happens(1, gpu.XID(79))
	w.hasTaints("although it is not kept", w.of(1, "xid-79:NoExecute"))
	if told := w.told(); !slices.ContainsFunc(told, func(note string) bool {
		return strings.HasPrefix(note, "Warning HealthNotKept keep the health of GPUs")
	}) {
		t.Errorf("told %q", told)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	w.discover()
	w.restart()
	w.hasTaints("after a restart", w.of(1, "xid-79:NoExecute"))
}

func TestGPUsWithClaimsAreWatched(t *testing.T) {
	w := newWard(t)
	watcher := &fakeWatcher{}
	w.config.Watcher = watcher
	w.restart()
	a, b := claimOf("a", share("gpu", "gpu-0", "s1", "10Gi", "0")), claimOf("b", share("gpu", "gpu-1", "s2", "10Gi", "0"))
	w.allocate(t, a, b)
	follows := func(want ...string) {
		t.Helper()
		if !slices.Equal(watcher.followed, want) {
			t.Errorf("watched are %v, want %v", watcher.followed, want)
		}
	}
	follows()
	mustPrepare(t, w.driver, a)
	follows(h100GPU0)
	mustPrepare(t, w.driver, b)
	follows(h100GPU0, h100GPU1)
	watcher.followed = nil
	w.restart()
	follows(h100GPU0, h100GPU1)
	for _, claim := range []*resourceapi.ResourceClaim{a, b} {
		if err := unprepare(t, w.driver, claim); err != nil {
			t.Fatal(err)
		}
	}
	follows()
}

func TestKubeletIsToldOfHealth(t *testing.T) {
	w := newWard(t)
	watcher := &fakeWatcher{events: make(chan gpu.Event)}
	w.driver.config.Watcher = watcher
	defer w.driver.watch(quiet(t))()
	ctx, cancel := context.WithCancel(quiet(t))
	reports, ended := make(chan kubeletplugin.DeviceHealthReport), make(chan error)
	go func() { ended <- w.driver.WatchHealthStatus(ctx, reports) }()
	told := func(want map[string]string) {
		t.Helper()
		unwell := map[string]string{}
		report := <-reports
		for _, device := range report.Devices {
			if device.PoolName != "node/gpus" || device.LastUpdated.IsZero() {
				t.Errorf("got %+v", device)
			}
			if device.Health != kubeletplugin.HealthStatusHealthy {
				unwell[device.DeviceName] = string(device.Health) + " " + device.Message
			}
		}
		if len(report.Devices) != len(published(w.driver)) {
			t.Errorf("told of %d devices, %d are published", len(report.Devices), len(published(w.driver)))
		}
		if diff := cmp.Diff(want, unwell); diff != "" {
			t.Errorf("unhealthy (-want +got):\n%s", diff)
		}
	}
	told(map[string]string{})
	watcher.events <- gpu.Event{GPU: h100GPU1, Fault: gpu.XID(79)}
	told(w.of(1, string(kubeletplugin.HealthStatusUnhealthy)+" XID 79: the GPU has fallen off the bus"))
	w.at = w.at.Add(time.Hour)
	w.hardware.devices[1].Health.Sound = true
	w.discover()
	told(map[string]string{})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
