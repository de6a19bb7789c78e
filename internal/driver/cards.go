package driver

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cards has a lock for each GPU. Who changes the mode or the partitions of one has it, in whichever process of the driver on
// the node: that takes seconds, in which others go on (aside).
type cards struct {
	dir string

	mu    sync.Mutex
	cards map[string]*card // by UUID
}

type card struct {
	here       sync.Mutex
	everywhere flock
}

// lock waits for GPUs. All take them in one order, so that no two wait for each other.
func (c *cards) lock(uuids []string) (unlock func(), err error) {
	var locked []*card
	unlock = func() {
		for _, one := range locked {
			one.everywhere.unlock()
			one.here.Unlock()
		}
	}
	for _, uuid := range uuids {
		one := c.card(uuid)
		one.here.Lock()
		locked = append(locked, one)
		if err := one.everywhere.lock(); err != nil {
			unlock()
			return nil, err
		}
	}
	return unlock, nil
}

func (c *cards) card(uuid string) *card {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cards == nil {
		c.cards = map[string]*card{}
	}
	if c.cards[uuid] == nil {
		c.cards[uuid] = &card{everywhere: flock{path: filepath.Join(c.dir, filepath.Base(uuid)+".lock")}}
	}
	return c.cards[uuid]
}

// alone runs a step exclusively, and with the locks of GPUs: those that it says it needs when it is its turn, sorted.
func (d *Driver) alone(ctx context.Context, gpus func() []string, step func(context.Context) error) error {
	turn := func() error {
		trace.SpanFromContext(ctx).AddEvent("Its turn") // until here it waited for others
		return step(ctx)
	}
	for {
		var needed []string
		if err := d.exclusively(func() error {
			needed = gpus()
			return nil
		}); err != nil {
			return err
		}
		done, err := d.aloneOn(needed, gpus, turn)
		if done || err != nil {
			return err
		}
	}
}

// aloneOn does nothing if other GPUs are needed by now than those that were locked.
func (d *Driver) aloneOn(locked []string, gpus func() []string, step func() error) (done bool, err error) {
	unlock, err := d.cards.lock(locked)
	if err != nil {
		return false, err
	}
	defer unlock()
	err = d.exclusively(func() error {
		if done = slices.Equal(locked, gpus()); done {
			return step()
		}
		return nil
	})
	return done, err
}

// aside lets other steps go on while a step that runs alone asks something of its GPUs. Afterwards all may have changed but what is
// of those.
func (d *Driver) aside(ctx context.Context, name string, ask func() error, attributes ...attribute.KeyValue) error {
	d.shared.unlock()
	d.mu.Unlock()
	err := d.span(ctx, name, func(context.Context) error { return ask() }, attributes...)
	d.mu.Lock()
	lockErr := d.shared.lock()
	if lockErr == nil {
		lockErr = d.catchUp()
	}
	return cmp.Or(err, lockErr)
}

// repartition changes the mode or the partitions of a GPU that is locked. Other processes look at it before and after: one that is killed in
// between leaves no change uncounted.
func (d *Driver) repartition(ctx context.Context, name string, change func(Partitioner) error, attributes ...attribute.KeyValue) error {
	if err := d.shared.countPartitions(); err != nil {
		return err
	}
	err := d.aside(ctx, name, func() error { return change(d.config.Partitioner) }, attributes...)
	return errors.Join(err, d.shared.countPartitions())
}

// partitioned are the GPUs of allocations that are partitioned, or of which the hardware has to be asked. Shares and partitions of
// one GPU are kept apart by the ledger: a share of one that is not partitioned needs no lock.
func (d *Driver) partitioned(allocations []allocation) []string {
	uuids := map[string]bool{}
	for _, a := range allocations {
		device, _ := d.node.gpu(a.GPU)
		_, known := d.node.edits[a.GPU]
		if a.Partition != nil || !known || device.MIG != nil && device.MIG.Enabled {
			uuids[a.GPU] = true
		}
	}
	return slices.Sorted(maps.Keys(uuids))
}

// partitionable are the GPUs that can be partitioned.
func (d *Driver) partitionable() []string {
	var uuids []string
	for _, device := range d.node.devices {
		if device.MIG != nil {
			uuids = append(uuids, device.UUID)
		}
	}
	slices.Sort(uuids)
	return uuids
}

// cardsOf are the GPUs that have to be locked while a claim is prepared or unprepared. nil is a claim that is only
// unprepared; what cannot be planned needs none.
func (d *Driver) cardsOf(uid types.UID, claim *resourceapi.ResourceClaim) func() []string {
	return func() []string {
		allocations := slices.Clone(d.booked[uid].Allocations)
		if claim != nil {
			if planned, err := plan(claim, d.config.NodeName, d.offers()); err == nil {
				allocations = append(allocations, planned.Allocations...)
			}
		}
		return d.partitioned(allocations)
	}
}
