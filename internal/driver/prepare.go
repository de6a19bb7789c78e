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
// that was prepared before is prepared again, since its spec may have been lost in a reboot.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KObj(claim), "uid", claim.UID)
		devices, err := d.prepare(claim)
		if err != nil {
			logger.Error(err, "Prepare")
			results[claim.UID] = kubeletplugin.PrepareResult{Err: err}
			continue
		}
		logger.Info("Prepared", "devices", len(devices))
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	return results, nil
}

// UnprepareResourceClaims undoes prepare. A claim that is not known is already unprepared.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KRef(claim.Namespace, claim.Name), "uid", claim.UID)
		d.mu.Lock()
		err := d.unprepare(string(claim.UID))
		d.mu.Unlock()
		if err != nil {
			logger.Error(err, "Unprepare")
		} else {
			logger.Info("Unprepared")
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *Driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node.err != nil {
		return nil, fmt.Errorf("GPUs of this node cannot be prepared now, will be tried again: %w", d.node.err)
	}
	planned, err := plan(claim, d.config.NodeName, d.node)
	if err != nil {
		return nil, err
	}
	if len(planned.Allocations) == 0 {
		return nil, nil
	}
	if err := d.sameGPUs(planned); err != nil {
		return nil, err
	}
	rendered, err := planned.render(d.node)
	if err != nil {
		return nil, err
	}
	if err := d.reserve(planned); err != nil {
		return nil, err
	}
	for _, effect := range d.effects(rendered) {
		if err := effect.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", effect.name, err)
		}
	}
	delete(d.lost, string(claim.UID))
	return planned.prepared(d.node), nil
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
		return err
	}
	if err := d.records.write(planned); err != nil {
		if len(before) == 0 {
			d.ledger.Release(planned.UID)
		} else {
			d.ledger.Adopt(planned.UID, before)
		}
		return err
	}
	return nil
}

// effect is one step that changes the node.
type effect struct {
	name string
	do   func() error
}

// effects are what prepare does once the record is on disk, in this order. After any of them the plugin may die: the
// record names the claim, so that a restart repeats all of them or undoes them, and the kubelet starts no container
// before all are done. When one fails, record and booking stay: the claim is still allocated here, and what is half done
// is finished by the kubelet's next try or removed by its unprepare.
func (d *Driver) effects(claim cdi.Claim) []effect {
	return []effect{
		// Share files alone are harmless: nothing mounts them.
		{"write share files", func() error { return d.store.WriteShares(claim) }},
		// The spec comes last: where it is, all it mounts is there.
		{"write CDI spec", func() error { return d.store.WriteSpec(claim) }},
	}
}

// undoing is what unprepare does, in this order: no new container may start with a share once its files go, and the
// record goes last, so that a crash in between is continued at the next start.
func (d *Driver) undoing(uid string) []effect {
	return []effect{
		{"remove CDI spec", func() error { return d.store.RemoveSpec(uid) }},
		{"remove share files", func() error { return d.store.RemoveShares(uid) }},
		{"remove record", func() error { return d.records.remove(uid) }},
	}
}

// unprepare expects mu to be held.
func (d *Driver) unprepare(uid string) error {
	for _, effect := range d.undoing(uid) {
		if err := effect.do(); err != nil {
			return fmt.Errorf("%s: %w", effect.name, err)
		}
	}
	d.ledger.Release(types.UID(uid))
	delete(d.lost, uid)
	return nil
}
