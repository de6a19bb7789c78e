package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/cdi"
)

// PrepareResourceClaims prepares each claim on its own: one that cannot be prepared does not hold up the others. A claim
// that was prepared before is prepared again, since its spec may have been lost in a reboot. Claims whose record was lost
// come first, since what they hold must not be given out again.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	if err := d.rebuildLost(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Rebuild records")
	}
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KObj(claim), "uid", claim.UID)
		var devices []kubeletplugin.Device
		err := d.timed(ctx, d.metrics.prepare, "Prepare", func(ctx context.Context) error {
			return d.alone(ctx, d.cardsOf(claim.UID, claim), func(ctx context.Context) (err error) {
				devices, err = d.prepare(ctx, claim)
				return err
			})
		}, claimAttributes(claim.Namespace, claim.Name, claim.UID)...)
		if err != nil {
			logger.Error(err, "Prepare")
			results[claim.UID] = kubeletplugin.PrepareResult{Err: err}
			continue
		}
		logger.Info("Prepared", "devices", len(devices))
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	d.tidy(ctx)
	return results, nil
}

// UnprepareResourceClaims undoes prepare. A claim that is not known is already unprepared.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KRef(claim.Namespace, claim.Name), "uid", claim.UID)
		err := d.timed(ctx, d.metrics.unprepare, "Unprepare", func(ctx context.Context) error {
			return d.alone(ctx, d.cardsOf(claim.UID, nil), func(ctx context.Context) error { return d.unprepare(ctx, string(claim.UID)) })
		}, claimAttributes(claim.Namespace, claim.Name, claim.UID)...)
		if err != nil {
			logger.Error(err, "Unprepare")
		} else {
			logger.Info("Unprepared")
		}
		results[claim.UID] = err
	}
	d.tidy(ctx)
	return results, nil
}

// prepare runs alone.
func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	planned, err := d.accept(claim)
	if err != nil || len(planned.Allocations) == 0 {
		return nil, err
	}
	if err := d.span(ctx, "WriteRecord", func(context.Context) error { return d.reserve(planned) }); err != nil {
		return nil, err
	}
	d.clearTheWay(ctx, planned)
	if err := run(ctx, d.traced(d.effects(planned, d.makeReady))); err != nil {
		return nil, err
	}
	d.settled(string(claim.UID))
	return planned.prepared(d.offers(), d.node), nil
}

// accept refuses a claim that cannot be prepared, before anything is booked or written.
func (d *Driver) accept(claim *resourceapi.ResourceClaim) (record, error) {
	if d.node.err != nil {
		return record{}, fmt.Errorf("%w: %w", errHardware, d.node.err)
	}
	planned, err := plan(claim, d.config.NodeName, d.offers())
	if err != nil || len(planned.Allocations) == 0 {
		return record{}, err
	}
	if err := d.sameGPUs(planned); err != nil {
		return record{}, err
	}
	return planned, planned.validate()
}

// sameGPUs refuses a replayed claim whose device name has come to mean another GPU, as when one was taken out and the
// rest were renumbered: the pod's memory limit was counted against the GPU it had.
func (d *Driver) sameGPUs(planned record) error {
	before, err := d.records.read(string(planned.UID))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errCorrupt) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, a := range planned.Allocations {
		i := slices.IndexFunc(before.Allocations, func(b allocation) bool { return b.Request == a.Request && b.id() == a.id() })
		if i >= 0 && before.Allocations[i].GPU != a.GPU {
			return fmt.Errorf("device %s was GPU %s when the claim was first prepared and is %s now; delete the pod so that its claim is allocated anew",
				a.Device, before.Allocations[i].GPU, a.GPU)
		}
	}
	return nil
}

// reserve books the shares and writes the record, the intent that precedes every effect. If the record cannot be
// written, the booking is as it was.
func (d *Driver) reserve(planned record) error {
	before := d.ledger.Shares(planned.UID)
	if err := d.ledger.Reserve(planned.UID, planned.shares()); err != nil {
		return d.explain(err)
	}
	if err := d.records.write(planned); err != nil {
		if len(before) == 0 {
			d.ledger.Release(planned.UID)
		} else {
			d.ledger.Adopt(planned.UID, before)
		}
		return err
	}
	d.booked[planned.UID] = planned
	d.followClaim(planned.UID)
	return nil
}

// effects are what prepare does once the record is on disk, in this order. After any of them the plugin may die: the
// record names the claim, so that a restart repeats all of them or undoes them, and the kubelet starts no container
// before all are done. When one fails, record and booking stay: the claim is still allocated here, and what is half done
// is finished by the kubelet's next try or removed by its unprepare.
func (d *Driver) effects(r record, makeReady func(context.Context, allocation) error) []step {
	var claim cdi.Claim
	return []step{
		// A partition that we make is marked first, and removed when no record names it.
		{"MakeReady", func(ctx context.Context) error {
			for _, a := range r.Allocations {
				if err := makeReady(ctx, a); err != nil {
					return err
				}
			}
			return nil
		}},
		// Share files alone are harmless: nothing mounts them.
		{"WriteShares", func(context.Context) (err error) {
			if claim, err = d.render(r); err != nil {
				return err
			}
			return d.store.WriteShares(claim)
		}},
		// The spec comes last: where it is, all it mounts is there.
		{"WriteSpec", func(context.Context) error { return d.store.WriteSpec(claim) }},
	}
}

// undoing is what unprepare does, in this order: no new container may start with a share once its files go, and the
// record goes last, so that a crash in between is continued at the next start.
func (d *Driver) undoing(uid string) []step {
	return []step{
		{"RemoveSpec", func(context.Context) error { return d.store.RemoveSpec(uid) }},
		{"RemovePartitions", func(ctx context.Context) error { return d.removePartitions(ctx, uid) }},
		{"RemoveShares", func(context.Context) error { return d.store.RemoveShares(uid) }},
		{"RemoveRecord", func(context.Context) error { return d.records.remove(uid) }},
	}
}

// unprepare runs alone.
func (d *Driver) unprepare(ctx context.Context, uid string) error {
	if _, err := d.records.read(uid); errors.Is(err, errNewer) {
		return err // who knows what else it holds
	}
	if err := run(ctx, d.traced(d.undoing(uid))); err != nil {
		return err
	}
	d.ledger.Release(types.UID(uid))
	delete(d.booked, types.UID(uid))
	d.settled(uid)
	d.followClaim(types.UID(uid))
	return nil
}

// settled notes that a claim's record is right again, or not needed any more. While one is lost nobody knows whose its
// partitions are; with the last of them those of nobody can go.
func (d *Driver) settled(uid string) {
	if d.isLost(uid) {
		delete(d.lost, uid)
		d.untidy = len(d.lost) == 0
	}
}

// tidy removes partitions of nobody if some may have come to light. Those that cannot be removed now are tried again.
func (d *Driver) tidy(ctx context.Context) {
	d.mu.Lock()
	untidy := d.untidy
	d.untidy = false
	d.mu.Unlock()
	if !untidy {
		return
	}
	if err := d.removeUnneeded(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Remove partitions that belong to no claim")
	}
}

// clearTheWay removes partitions of ours that belong to no claim from the GPUs of one.
func (d *Driver) clearTheWay(ctx context.Context, r record) {
	gpus := d.partitioned(r.Allocations)
	for _, s := range d.unneeded() {
		if !slices.Contains(gpus, s.gpu) {
			continue
		}
		if err := d.removePartition(ctx, s); err != nil {
			klog.FromContext(ctx).Error(err, "Remove a partition that belongs to no claim", "gpu", s.gpu)
		}
	}
}
