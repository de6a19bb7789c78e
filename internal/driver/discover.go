package driver

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// discover asks the hardware anew. When the hardware does not answer, what was known stays published, since running
// pods hold it, but nothing is prepared until it answers again. A GPU that is being partitioned is not asked: it may not answer.
func (d *Driver) discover(ctx context.Context) error {
	return d.span(ctx, "Discover", func(ctx context.Context) error {
		for {
			fresh, err := d.discoverOnce(ctx)
			if fresh || err != nil {
				return err
			}
		}
	})
}

func (d *Driver) discoverOnce(ctx context.Context) (fresh bool, err error) {
	var uuids []string
	if err := d.exclusively(func() error {
		uuids = d.partitionable()
		return nil
	}); err != nil {
		return false, err
	}
	unlock, err := d.cards.lock(uuids)
	if err != nil {
		return false, err
	}
	defer unlock()
	before, err := d.partitionChanges()
	if err != nil {
		return false, err
	}
	n, skipped, silent := d.ask()
	err = d.exclusively(func() error {
		fresh = d.found(ctx, before, n, skipped, silent)
		return nil
	})
	if fresh {
		err = silent
	}
	return fresh, err
}

// ask asks the hardware.
func (d *Driver) ask() (n node, skipped []error, err error) {
	n.devices, skipped, err = d.config.Hardware.Devices()
	if err == nil {
		n.common, n.edits, err = d.config.Hardware.Edits(uuids(n.devices))
	}
	return n, skipped, err
}

// partitionChanges counts the changes up to now, whoever made them.
func (d *Driver) partitionChanges() (changes int, err error) {
	err = d.exclusively(func() error {
		changes = d.changes
		return nil
	})
	return changes, err
}

// found takes over what a discovery says, unless partitions were made or removed while it was under way: it may not
// tell which.
func (d *Driver) found(ctx context.Context, before int, n node, skipped []error, err error) bool {
	if d.changes != before {
		return false
	}
	if !d.standby.Load() {
		d.tell(ctx, n, skipped, err)
	}
	d.take(n, err)
	return true
}

// tell keeps what a discovery says of the GPUs' health, and tells people what is new.
func (d *Driver) tell(ctx context.Context, n node, skipped []error, err error) {
	d.report(ctx, n.devices, skipped, err)
	if err == nil {
		d.look(ctx, n.devices, skipped)
		d.reportPartitions(n)
	}
}

// take makes what a discovery found what is known of the GPUs.
func (d *Driver) take(n node, err error) {
	d.node.err = err
	d.setReady(err)
	if err != nil {
		return
	}
	d.node.devices, d.node.common, d.node.edits = append([]gpu.Device{}, n.devices...), n.common, n.edits
	for _, device := range n.devices {
		d.ledger.SetGPU(device.UUID, device.Allocatable(v1alpha1.MemoryStep))
	}
	d.follow()
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
		becomes := "is withdrawn"
		if d.remembers(uuid) {
			becomes = "stays published as unhealthy"
		}
		d.warnNode("GPULost", "Discover", "GPU %s does not answer any more and %s; its pods keep it until they end", uuid, becomes)
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
func (d *Driver) publish(ctx context.Context) error {
	if d.neighbour.Load() == nil {
		return nil // nobody knows yet whether the GPUs are given out already
	}
	resources, changed := d.unpublished()
	if !changed {
		return nil
	}
	if err := d.publishResources(ctx, resources); err != nil {
		if ctx.Err() != nil {
			return nil // another process is about to publish, or this one ends
		}
		d.metrics.publish.Inc()
		err = fmt.Errorf("publish the GPUs: %w", err)
		klog.FromContext(ctx).Error(err, "Publish")
		d.warnNode("PublishFailed", "Publish", "%v", err)
		return err
	}
	klog.FromContext(ctx).Info("Published", "slices", len(resources.Pools[inventory.PoolName(d.config.NodeName)].Slices))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.published = &resources
	return nil
}

// unpublished is what is to be published, and whether that differs from what was.
func (d *Driver) unpublished() (resourceslice.DriverResources, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var offered []gpu.Device
	if d.conflict() == nil {
		offered = d.publishable()
	}
	resources := inventory.Resources(d.config.NodeName, offered, d.taints())
	return resources, d.published == nil || !equality.Semantic.DeepEqual(resources, *d.published)
}

// uuids are those of all that containers can be given now.
func uuids(devices []gpu.Device) (uuids []string) {
	for _, device := range devices {
		uuids = append(uuids, device.Visible()...)
	}
	return uuids
}
