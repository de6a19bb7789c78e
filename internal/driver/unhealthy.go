package driver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// Watcher is where the driver learns what happens to GPUs.
type Watcher interface {
	// Follow says which GPUs are watched from now on, by UUID.
	Follow(uuids []string)
	// Run tells of events until ctx ends, one at a time. An event without a GPU or a fault asks for a look.
	Run(ctx context.Context, tell func(gpu.Event))
}

// gpuStart tells one start of the node's GPUs from another.
func gpuStart() string { return bootID() + loadedDriver() }

// loadedDriver tells one load of the NVIDIA kernel module from another: sysfs numbers its directories anew. Where there
// is none, as in a VM that has part of a GPU, only the boot counts.
func loadedDriver() string {
	info, err := os.Stat("/sys/module/nvidia")
	if err != nil {
		return ""
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(stat.Ino)
	}
	return ""
}

// watch begins to watch GPUs and returns what ends it.
func (d *Driver) watch(ctx context.Context) func() {
	if d.config.Watcher == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.config.Watcher.Run(ctx, func(e gpu.Event) { d.happened(ctx, e) })
	}()
	return func() {
		cancel()
		<-done
	}
}

// followGPUs has those GPUs watched on which something is prepared: NVML is closed on a node that was drained. It expects
// mu to be held.
func (d *Driver) followGPUs() {
	if d.config.Watcher != nil {
		d.config.Watcher.Follow(slices.Collect(maps.Keys(d.held())))
	}
}

// held are the GPUs on which something is prepared, by UUID.
func (d *Driver) held() map[string]bool {
	held := map[string]bool{}
	for _, r := range d.booked {
		for _, a := range r.Allocations {
			held[a.GPU] = true
		}
	}
	return held
}

// remembers says whether a GPU stays published when it does not answer.
func (d *Driver) remembers(uuid string) bool {
	patients, _ := d.health.all()
	return d.held()[uuid] || patients[uuid].isUnhealthy()
}

// happened keeps what a GPU's driver tells, before anybody hears of it. It waits for no lock of a GPU: a preparation may
// hold one while it waits for the watch to close NVML.
func (d *Driver) happened(ctx context.Context, e gpu.Event) {
	fresh, err := d.health.happened(e)
	d.reportUnkept(ctx, err)
	switch {
	case e.Fault.Kind == "":
	case fresh:
		d.reportFault(ctx, e.GPU, e.Fault)
	case !e.Fault.Severity.Exceeds(gpu.Informs):
		klog.FromContext(ctx).Info("GPU tells of a fault that does not hurt others", "uuid", e.GPU, "fault", e.Fault.Kind)
		d.warnNode("GPUFault", "Watch", "GPU %s: %s", e.GPU, e.Fault.Note)
	}
	if fresh || e.Fault.Kind == "" || e.GPU == "" {
		d.lookSoon()
	}
}

func (d *Driver) reportFault(ctx context.Context, uuid string, fault gpu.Fault) {
	klog.FromContext(ctx).Info("GPU is unhealthy", "uuid", uuid, "fault", fault.Kind, "severity", fault.Severity)
	d.warnNode("GPUUnhealthy", "Watch", "GPU %s: %s; it has taint %s=%s:%s", uuid, fault.Note, v1alpha1.TaintUnhealthy, fault.Kind, d.effect(fault.Severity))
}

func (d *Driver) reportUnkept(ctx context.Context, err error) {
	if err != nil {
		klog.FromContext(ctx).Error(err, "Health of GPUs")
		d.warnNode("HealthNotKept", "Watch", "%v; until that works a restart of the plugin forgets it", err)
	}
}

// look takes in how GPUs fare, as a discovery found them. It expects mu to be held.
func (d *Driver) look(ctx context.Context, answer []gpu.Device, skipped []error) {
	lost := map[int]bool{}
	for _, reason := range skipped {
		if index, ok := gpu.LostIndex(reason); ok {
			lost[index] = true
		}
	}
	before, err := d.health.look(answer, lost, d.held())
	d.reportUnkept(ctx, err)
	now, _ := d.health.all()
	for _, uuid := range slices.Sorted(maps.Keys(now)) {
		for _, a := range now[uuid].Ailments {
			if before[uuid].find(a.Kind) >= 0 {
				continue
			}
			if a.Severity.Exceeds(gpu.Informs) {
				d.reportFault(ctx, uuid, a.Fault)
			} else {
				d.warnNode("GPUFault", "Discover", "GPU %s: %s", uuid, a.Note)
			}
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(before)) {
		if before[uuid].isUnhealthy() && !now[uuid].isUnhealthy() {
			klog.FromContext(ctx).Info("GPU is well again", "uuid", uuid)
			d.tellNode(corev1.EventTypeNormal, "GPUHealthy", "Discover", "GPU %s is well again; it was tainted since %s: %s",
				uuid, before[uuid].worst().Since.Format(time.RFC3339), before[uuid].worst().Note)
		}
	}
}

// effect is that of the taint of GPUs with a fault so severe.
func (d *Driver) effect(severity gpu.Severity) resourceapi.DeviceTaintEffect {
	return cmp.Or(d.config.Taints[severity], resourceapi.DeviceTaintEffectNoSchedule)
}

// healthTaints are the taints of unhealthy GPUs, by UUID.
func (d *Driver) healthTaints() map[string][]resourceapi.DeviceTaint {
	patients, _ := d.health.all()
	taints := map[string][]resourceapi.DeviceTaint{}
	for uuid, p := range patients {
		if worst := p.worst(); p.isUnhealthy() {
			added := metav1.NewTime(worst.Since.Truncate(time.Second)) // the API keeps whole seconds
			taints[uuid] = []resourceapi.DeviceTaint{{
				Key: v1alpha1.TaintUnhealthy, Value: worst.Kind, Effect: d.effect(worst.Severity), TimeAdded: &added,
			}}
		}
	}
	return taints
}

// publishable are the GPUs that are published, with those that do not answer but are known to be ill: a taint on what is not
// published would reach nobody. A GPU that came to bear the name of another is published alone.
func (d *Driver) publishable() []gpu.Device {
	devices := d.offers().devices
	taken := map[string]bool{}
	for _, device := range devices {
		taken[device.Name()] = true
	}
	patients, _ := d.health.all()
	for _, uuid := range slices.Sorted(maps.Keys(patients)) {
		if p := patients[uuid]; p.Silent && p.Device.UUID != "" && !taken[p.Device.Name()] {
			taken[p.Device.Name()] = true
			devices = append(devices, d.withoutOurs(p.Device))
		}
	}
	slices.SortStableFunc(devices, func(a, b gpu.Device) int { return cmp.Compare(a.Index, b.Index) })
	return devices
}

const (
	// reportHealthEvery is how often the kubelet is told that nothing has changed.
	reportHealthEvery = 10 * time.Second
	// healthTimeout is when the kubelet takes the health of a device for unknown if it is not told. A look at the GPUs that holds up
	// a report may take some of it.
	healthTimeout = time.Minute
)

// WatchHealthStatus tells the kubelet how the published devices fare, for the status of pods, until ctx ends. The kubelet keeps
// one status a device whoever told it, so a process that does not watch GPUs says nothing.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		report, changed := d.healthReport()
		if !d.standby.Load() {
			select {
			case <-ctx.Done():
				return nil
			case reports <- report:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(reportHealthEvery):
		}
	}
}

func (d *Driver) healthReport() (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	patients, changed := d.health.all()
	d.mu.Lock()
	devices := d.publishable()
	d.mu.Unlock()
	var report kubeletplugin.DeviceHealthReport
	for _, device := range devices {
		p := patients[device.UUID]
		status := kubeletplugin.HealthStatusHealthy
		if p.isUnhealthy() {
			status = kubeletplugin.HealthStatusUnhealthy
		}
		for _, published := range inventory.Devices(device) {
			report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
				PoolName: inventory.PoolName(d.config.NodeName), DeviceName: published.Name,
				Health: status, Message: p.worst().Note, LastUpdated: time.Now(), HealthCheckTimeout: healthTimeout,
			})
		}
	}
	return report, changed
}
