package driver

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// node is what the last discovery found.
type node struct {
	err       error // why nothing can be prepared now; devices are then those known before
	devices   []gpu.Device
	common    specs.ContainerEdits
	edits     map[string]specs.ContainerEdits // by GPU UUID
	skipped   []string                        // why other GPUs are left out, as it was told
	published []gpu.Device                    // nil until something was published
}

// byName finds a GPU by the name under which it is published.
func (n node) byName(name string) (gpu.Device, bool) {
	for _, device := range n.devices {
		if device.Name() == name {
			return device, true
		}
	}
	return gpu.Device{}, false
}

// discover asks the hardware anew. When the hardware does not answer, what was known stays published, since running
// pods hold it, but nothing is prepared until it answers again.
func (d *Driver) discover(ctx context.Context) error {
	devices, skipped, err := d.config.Hardware.Devices()
	var common specs.ContainerEdits
	var edits map[string]specs.ContainerEdits
	if err == nil {
		common, edits, err = d.config.Hardware.Edits(uuids(devices))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report(ctx, devices, skipped, err)
	d.node.err = err
	d.setReady(err)
	if err != nil {
		return err
	}
	d.node.devices, d.node.common, d.node.edits = append([]gpu.Device{}, devices...), common, edits
	for _, device := range devices {
		d.ledger.SetGPU(device.UUID, device.Allocatable(v1alpha1.MemoryStep))
	}
	return nil
}

// report tells of what changed since the last discovery: once, not each minute.
func (d *Driver) report(ctx context.Context, devices []gpu.Device, skipped []error, err error) {
	logger := klog.FromContext(ctx)
	if err != nil {
		if d.node.err == nil || d.node.err.Error() != err.Error() {
			logger.Error(err, "Discover GPUs; nothing is prepared until this succeeds")
			d.warnNode("DiscoveryFailed", "Discover", "GPUs of this node cannot be prepared: %v", err)
		}
		return
	}
	known := map[string]bool{}
	for _, device := range d.node.devices {
		known[device.UUID] = true
	}
	for _, device := range devices {
		if !known[device.UUID] {
			logger.Info("Found GPU", "device", device.Name(), "uuid", device.UUID, "product", device.ProductName)
		}
		delete(known, device.UUID)
	}
	for uuid := range known {
		logger.Info("GPU is gone", "uuid", uuid)
		d.warnNode("GPULost", "Discover", "GPU %s does not answer any more and is withdrawn; its pods keep it until they end", uuid)
	}
	d.reportSkipped(ctx, skipped)
	if len(devices) == 0 && (d.node.devices == nil || len(d.node.devices) > 0) {
		logger.Info("No GPU found; the node publishes an empty pool")
		d.warnNode("NoGPU", "Discover", "NVML found no GPU that can be shared; the node publishes none")
	}
}

func (d *Driver) reportSkipped(ctx context.Context, skipped []error) {
	told := d.node.skipped
	d.node.skipped = nil
	for _, reason := range skipped {
		d.node.skipped = append(d.node.skipped, reason.Error())
		if !slices.Contains(told, reason.Error()) {
			klog.FromContext(ctx).Error(reason, "GPU is not published")
			d.warnNode("GPUNotPublished", "Discover", "%v", reason)
		}
	}
}

// publish tells the scheduler of the node's GPUs if they changed. Only Start calls it, and it holds no lock while it
// waits for the API server: unpreparing must not wait with it.
func (d *Driver) publish(ctx context.Context) {
	devices, changed := d.unpublished()
	if !changed {
		return
	}
	if err := d.helper.Load().PublishResources(ctx, inventory.Resources(d.config.NodeName, devices)); err != nil {
		err = fmt.Errorf("publish %d GPUs: %w", len(devices), err)
		klog.FromContext(ctx).Error(err, "Publish")
		d.warnNode("PublishFailed", "Publish", "%v", err)
		return
	}
	klog.FromContext(ctx).Info("Published", "gpus", len(devices))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.node.published = devices
}

// unpublished is what is to be published, and whether that differs from what was.
func (d *Driver) unpublished() ([]gpu.Device, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	devices := d.node.devices
	if devices == nil {
		devices = []gpu.Device{}
	}
	return devices, d.node.published == nil || !reflect.DeepEqual(devices, d.node.published)
}

func uuids(devices []gpu.Device) []string {
	uuids := make([]string, 0, len(devices))
	for _, device := range devices {
		uuids = append(uuids, device.UUID)
	}
	return uuids
}
