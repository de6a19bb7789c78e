package driver

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// turn decides which of the processes on a node does what only one may do. It is the one that came last, as soon as the
// kubelet has registered it; when that one ends, however it does, another has the turn again.
type turn struct {
	mine   flock // held by whose turn it is
	wanted flock // held by one that came later and waits for mine
	asked  bool  // nobody asks twice: who once had the turn waits until it is free
}

func newTurn(dir string) turn {
	return turn{mine: flock{path: filepath.Join(dir, "lead.lock")}, wanted: flock{path: filepath.Join(dir, "next.lock")}}
}

// turnEvery is how often locks are looked at: nothing tells of a change.
const turnEvery = 250 * time.Millisecond

// try takes the turn if nobody has it.
func (t *turn) try() (bool, error) {
	mine, err := t.mine.try()
	t.asked = t.asked || mine
	return mine, err
}

func (t *turn) yield() { t.mine.unlock() }

// take waits for the turn. It asks for it once mayAsk says so, and returns false when ctx ends.
func (t *turn) take(ctx context.Context, mayAsk func() bool) (bool, error) {
	asks := false
	defer func() {
		if asks {
			t.wanted.unlock()
		}
	}()
	for ; ctx.Err() == nil; pause(ctx, turnEvery) {
		if !asks && !t.asked && mayAsk() {
			var err error
			if asks, err = t.wanted.try(); err != nil {
				return false, err
			}
			t.asked = asks
		}
		if !asks {
			another, err := t.wanted.isHeld()
			if err != nil {
				return false, err
			}
			if another {
				continue
			}
		}
		if mine, err := t.try(); mine || err != nil {
			return mine, err
		}
	}
	return false, nil
}

// untilWanted returns when another process asks for the turn, or ctx ends.
func (t *turn) untilWanted(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, turnEvery) {
		if wanted, err := t.wanted.isHeld(); err == nil && wanted {
			return
		}
	}
}

// pause waits for a while, or until ctx ends.
func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

// takeOver waits for the turn and leads until another process wants it.
func (d *Driver) takeOver(ctx context.Context) error {
	mine, err := d.turn.take(ctx, d.known.Load)
	if err != nil || !mine {
		return err
	}
	klog.FromContext(ctx).Info("Taking over from another plugin of this node")
	d.standby.Store(false)
	if err := d.health.load(); err != nil { // as the other one left it
		d.reportUnkept(ctx, err)
	}
	found := d.discover(ctx)
	d.reconcile(ctx)
	d.lead(ctx, found)
	return nil
}

// retryEvery is how soon a failed discovery is tried again.
const retryEvery = 10 * time.Second

// lead does what only one process of a node may do: it publishes GPUs and keeps that true, watches them, measures shares and
// reconciles, until another process wants to or ctx ends. found is what the last discovery said. The other one waits until
// all that is over.
func (d *Driver) lead(ctx context.Context, found error) {
	defer d.turn.yield()
	defer d.standby.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		d.turn.untilWanted(ctx)
	}()
	d.neighbour.Store(nil) // what was known of it may be old
	defer d.stopPublishing()
	defer d.measure(ctx)()
	defer d.watchNode(ctx)()
	defer d.watch(ctx)()
	for {
		published := d.publish(ctx)
		d.askVersion(ctx)
		wait := d.config.DiscoveryInterval
		if found != nil || published != nil {
			wait = min(wait, retryEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-d.wake:
		case <-d.again:
			d.forgetPublished()
			continue
		}
		found = d.discover(ctx)
		d.reconcile(ctx)
	}
}

// publishResources has the node's slices be what is given. The helper for kubelet plugins could do that, but would not stop without
// ending the service, and two processes that publish different things undo each other's slices for ever.
func (d *Driver) publishResources(ctx context.Context, resources resourceslice.DriverResources) error {
	if d.slices != nil {
		d.slices.Update(&resources)
		return nil
	}
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName:   v1alpha1.DriverName,
		KubeClient:   d.config.Client,
		Owner:        &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: d.config.NodeName},
		Resources:    &resources,
		ErrorHandler: d.publishFailed,
	})
	if err != nil {
		return fmt.Errorf("start the controller of ResourceSlices: %w", err)
	}
	d.slices = controller
	return nil
}

// stopPublishing leaves the slices as they are.
func (d *Driver) stopPublishing() {
	d.slices.Stop()
	d.slices = nil
	d.forgetPublished()
}
