package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/internal/gpu"
)

// slot is the zero one for an allocation that needs no partition made.
func (a allocation) slot() slot {
	if a.Partition == nil || a.AdminAccess {
		return slot{}
	}
	return slot{gpu: a.GPU, profile: a.Partition.Profile, placement: a.Partition.Placement}
}

// offers is the node as far as it is given out: the only partitions it shows are those that other people made.
func (d *Driver) offers() node {
	n := d.node
	n.devices = slices.Clone(n.devices)
	for i, device := range n.devices {
		n.devices[i] = d.withoutOurs(device)
	}
	return n
}

// withoutOurs is a GPU without the partitions that are ours.
func (d *Driver) withoutOurs(device gpu.Device) gpu.Device {
	if device.MIG == nil {
		return device
	}
	mig := *device.MIG
	mig.Partitions = slices.DeleteFunc(slices.Clone(mig.Partitions), func(p gpu.Partition) bool {
		return d.ours[slot{gpu: device.UUID, profile: p.Profile, placement: p.Placement}]
	})
	device.MIG = &mig
	return device
}

// makeReady brings a GPU into the mode that an allocation needs, and makes its partition unless there is one, whoever made
// it.
func (d *Driver) makeReady(ctx context.Context, a allocation) error {
	device, ok := d.node.gpu(a.GPU)
	if !ok {
		return fmt.Errorf("GPU %s is not on this node now", a.GPU)
	}
	if a.Partition == nil {
		if err := d.leaveMIG(ctx, device); err != nil {
			return err
		}
	} else if !a.AdminAccess {
		found, err := d.makePartition(ctx, a.slot())
		if err != nil {
			return err
		}
		d.keep(device, found)
	}
	return d.findEdits(ctx, a)
}

// findEdits asks what containers need for a device that was not there at the last discovery.
func (d *Driver) findEdits(ctx context.Context, a allocation) error {
	uuid, err := d.node.uuid(a)
	if err != nil {
		return err
	}
	if _, ok := d.node.edits[uuid]; ok {
		return nil
	}
	var edits map[string]specs.ContainerEdits
	if err := d.aside(ctx, "ReadEdits", func() (err error) {
		_, edits, err = d.config.Hardware.Edits([]string{uuid})
		return err
	}, semconv.HwID(uuid)); err != nil {
		return err
	}
	d.node.edits = maps.Clone(d.node.edits)
	maps.Copy(d.node.edits, edits)
	return nil
}

// makePartition gives the partition that is in a slot, and makes it if it must. One that we began to make is completed.
func (d *Driver) makePartition(ctx context.Context, s slot) (gpu.Partition, error) {
	if !d.ours[s] {
		found, ok, err := d.findPartition(ctx, s)
		if err != nil {
			return gpu.Partition{}, err
		}
		if ok && found.UUID == "" {
			return gpu.Partition{}, fmt.Errorf("partition %s at %d of GPU %s is divided further, or not ready, and somebody else's", s.profile, s.placement.Start, s.gpu)
		}
		if ok {
			return found, nil
		}
		if err := d.marks.add(s); err != nil {
			return gpu.Partition{}, err
		}
		d.ours[s] = true
	}
	var made gpu.Partition
	err := d.repartition(ctx, "CreatePartition", func(partitioner Partitioner) (err error) {
		made, err = partitioner.CreatePartition(s.gpu, s.profile, s.placement)
		return err
	}, slotAttributes(s)...)
	if err == nil {
		return made, nil
	}
	// What is not there is nobody's: who comes next must not be taken for us.
	if _, there, findErr := d.findPartition(ctx, s); findErr == nil && !there {
		err = errors.Join(err, d.disown(s))
	}
	return gpu.Partition{}, err
}

func (d *Driver) findPartition(ctx context.Context, s slot) (found gpu.Partition, ok bool, err error) {
	err = d.aside(ctx, "FindPartition", func() (err error) {
		found, ok, err = d.config.Partitioner.FindPartition(s.gpu, s.profile, s.placement)
		return err
	}, slotAttributes(s)...)
	return found, ok, err
}

func (d *Driver) disown(s slot) error {
	if err := d.marks.remove(s); err != nil {
		return err
	}
	delete(d.ours, s)
	return nil
}

// restore is makeReady for a claim that was prepared before: what is known to be there since the last discovery is not
// asked for again.
func (d *Driver) restore(ctx context.Context, a allocation) error {
	if _, err := d.node.uuid(a); err == nil && a.Partition != nil {
		return d.findEdits(ctx, a)
	}
	return d.makeReady(ctx, a)
}

// errMode is wrapped where a GPU is partitioned that is to be shared.
var errMode = errors.New("is partitioned and cannot be shared")

// leaveMIG turns MIG mode off if that takes no reset. Partitions keep it on, and are then the error.
func (d *Driver) leaveMIG(ctx context.Context, device gpu.Device) error {
	if device.MIG == nil || !device.MIG.Enabled {
		return nil
	}
	leave := func(p Partitioner) error { return p.SetMIGMode(device.UUID, false) }
	if err := d.repartition(ctx, "LeaveMIGMode", leave, semconv.HwID(device.UUID)); err != nil {
		return fmt.Errorf("GPU %s %w: %w", device.UUID, errMode, err)
	}
	d.changed(device, func(m *gpu.MIG) { m.Enabled = false })
	return nil
}

// keep notes that a partition is there. What was known is no change: it must make no discovery stale.
func (d *Driver) keep(device gpu.Device, made gpu.Partition) {
	if device.MIG == nil || device.MIG.Enabled && slices.Contains(device.MIG.Partitions, made) {
		return
	}
	d.changed(device, func(m *gpu.MIG) {
		m.Enabled = true
		m.Partitions = slices.DeleteFunc(m.Partitions, func(p gpu.Partition) bool { return p.At(made.Profile, made.Placement) })
		m.Partitions = append(m.Partitions, made)
	})
}

// changed notes what became of a GPU's partitions, in a copy: what was published must stay as it was.
func (d *Driver) changed(device gpu.Device, change func(*gpu.MIG)) {
	i := slices.IndexFunc(d.node.devices, func(other gpu.Device) bool { return other.UUID == device.UUID })
	if i < 0 || d.node.devices[i].MIG == nil {
		return
	}
	mig := *d.node.devices[i].MIG
	mig.Partitions = slices.Clone(mig.Partitions)
	change(&mig)
	d.node.devices = slices.Clone(d.node.devices)
	d.node.devices[i].MIG = &mig
	d.changes++
}

// removePartitions removes the partitions of a claim that are ours and that no other claim has a share of.
func (d *Driver) removePartitions(ctx context.Context, uid string) error {
	for _, a := range d.booked[types.UID(uid)].Allocations {
		if s := a.slot(); d.ours[s] && !d.needed(s, types.UID(uid)) {
			if err := d.removePartition(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// removePartition is done with a GPU that is lost: its partitions are gone with it.
func (d *Driver) removePartition(ctx context.Context, s slot) error {
	if _, ok := d.node.gpu(s.gpu); ok || d.node.err != nil || d.node.devices == nil {
		destroy := func(p Partitioner) error { return p.DestroyPartition(s.gpu, s.profile, s.placement) }
		if err := d.repartition(ctx, "DestroyPartition", destroy, slotAttributes(s)...); err != nil {
			return err
		}
	}
	device, _ := d.node.gpu(s.gpu)
	d.changed(device, func(m *gpu.MIG) {
		m.Partitions = slices.DeleteFunc(m.Partitions, func(p gpu.Partition) bool { return p.At(s.profile, s.placement) })
	})
	d.leaveIdleMIG(ctx, s.gpu)
	return d.disown(s)
}

// needed says whether any claim but one has a share of a slot's partition.
func (d *Driver) needed(s slot, except types.UID) bool {
	for uid, r := range d.booked {
		if uid != except && slices.ContainsFunc(r.Allocations, func(a allocation) bool { return a.slot() == s }) {
			return true
		}
	}
	return false
}

// unneeded are the partitions of ours that no claim names, as after the loss of a record. While a lost record is yet
// to be rebuilt, it may be the one that does.
func (d *Driver) unneeded() []slot {
	if len(d.lost) > 0 || d.node.err != nil {
		return nil
	}
	var unneeded []slot
	for s := range d.ours {
		if !d.needed(s, "") {
			unneeded = append(unneeded, s)
		}
	}
	slices.SortFunc(unneeded, func(a, b slot) int { return cmp.Compare(d.marks.path(a), d.marks.path(b)) })
	return unneeded
}

// removeUnneeded removes them, one GPU at a time.
func (d *Driver) removeUnneeded(ctx context.Context) error {
	var all []slot
	if err := d.exclusively(func() error {
		all = d.unneeded()
		return nil
	}); err != nil {
		return err
	}
	var errs []error
	for _, s := range all {
		errs = append(errs, d.alone(ctx, func() []string { return []string{s.gpu} }, func(ctx context.Context) error {
			if slices.Contains(d.unneeded(), s) {
				return d.removePartition(ctx, s)
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// leaveIdleMIG turns MIG mode off on a GPU that has no partition left. If that fails, the first share of it tries again.
func (d *Driver) leaveIdleMIG(ctx context.Context, uuid string) {
	device, ok := d.node.gpu(uuid)
	if !ok || device.MIG == nil || !device.MIG.Switchable || len(device.MIG.Partitions) > 0 {
		return
	}
	if err := d.leaveMIG(ctx, device); err != nil {
		klog.FromContext(ctx).Error(err, "Leave MIG mode", "gpu", uuid)
	}
}

// reportPartitions tells of partitions of live claims that somebody has removed since the last discovery.
func (d *Driver) reportPartitions(n node) {
	for _, uid := range slices.Sorted(maps.Keys(d.booked)) {
		r := d.booked[uid]
		for _, a := range r.Allocations {
			before, known := d.node.partition(a)
			now, _ := n.partition(a)
			if known && before.UUID != "" && now.UUID != before.UUID {
				d.warnNode("PartitionLost", "Discover", "partition %s of GPU %s, %s, was removed while claim %s/%s has it; containers that use it must be restarted",
					a.Device, a.GPU, before.UUID, r.Namespace, r.Name)
			}
		}
	}
}
