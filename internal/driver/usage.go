package driver

import (
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/usage"
)

// measure begins to look at what shares use and returns what ends it.
func (d *Driver) measure(ctx context.Context) func() {
	if d.usage == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.usage.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// Shares is what the node's shares used when they were last looked at; none if they are not measured.
func (d *Driver) Shares() []usage.ShareUsage {
	if d.usage == nil {
		return nil
	}
	return d.usage.Shares()
}

// follow says which shares there are now to those who measure them. The files of a share that is booked may not be there
// yet. It expects mu to be held.
func (d *Driver) follow() {
	d.followed, d.followedAt = nil, d.changes
	for _, uid := range slices.Sorted(maps.Keys(d.booked)) {
		d.followed = append(d.followed, d.sharesOf(d.booked[uid])...)
	}
	d.tellFollowed()
}

// followClaim is follow where nothing but one claim came, went or changed since the last time: there may be a thousand
// others.
func (d *Driver) followClaim(uid types.UID) {
	if d.followedAt != d.changes { // a partition may have got another UUID
		d.follow()
		return
	}
	dir := d.config.Layout.SharesDir + "/" + string(uid) + "/" // as ShareDir has it
	d.followed = slices.DeleteFunc(d.followed, func(s usage.Share) bool { return strings.HasPrefix(s.Dir, dir) })
	d.followed = append(d.followed, d.sharesOf(d.booked[uid])...)
	d.tellFollowed()
}

func (d *Driver) tellFollowed() {
	d.followGPUs()
	if d.usage != nil {
		d.usage.Follow(d.followed)
	}
}

// sharesOf are the shares of a claim that can be measured now.
func (d *Driver) sharesOf(r record) (shares []usage.Share) {
	for _, a := range r.Allocations {
		if uuid, err := d.node.uuid(a); err == nil && a.limited() {
			shares = append(shares, d.shareOf(r, a, uuid))
		}
	}
	return shares
}

func (d *Driver) shareOf(r record, a allocation, uuid string) usage.Share {
	return usage.Share{
		Claim:       r.Namespace + "/" + r.Name,
		Request:     a.Request,
		GPU:         uuid,
		Model:       d.model(a),
		Dir:         d.config.Layout.ShareDir(string(r.UID), a.cdiDevice(uuid)),
		MemoryBytes: a.Limits.MemoryBytes,
		CorePercent: a.Limits.CorePercent,
		Burst:       a.Limits.CorePolicy == v1alpha1.CoreBurst,
	}
}

// model is what contexts cost alike on: a GPU's product, and the profile of a partition of it.
func (d *Driver) model(a allocation) string {
	device, _ := d.node.gpu(a.GPU)
	if a.Partition != nil {
		return device.ProductName + " MIG " + a.Partition.Profile
	}
	return device.ProductName
}

// render is what the claim's containers shall see, with what its shares' agent pages say at first. It expects mu to be
// held.
func (d *Driver) render(r record) (cdi.Claim, error) {
	claim, err := r.render(d.node)
	if err != nil {
		return cdi.Claim{}, err
	}
	for i, a := range r.Allocations {
		if q := claim.Devices[i].Quota; q != nil {
			q.ContextMiB, q.CorePermille = d.contextMiB(a), d.firstCores(r, a)
		}
	}
	return claim, nil
}

// contextMiB is what a context is charged at first on a device: what was measured on its model, or what the admin says.
func (d *Driver) contextMiB(a allocation) uint32 {
	if d.usage != nil && d.config.ContextMiB > 0 {
		if mib, ok := d.usage.ContextMiB(d.model(a)); ok {
			return mib
		}
	}
	return d.config.ContextMiB
}

// firstCores is what a share may use of its GPU's time before it was measured, in permille; 0: what it was granted.
func (d *Driver) firstCores(r record, a allocation) uint32 {
	if a.Limits.CorePercent > 0 {
		return 0
	}
	var tenants []usage.Tenant
	count := func(r record) {
		for _, b := range r.Allocations {
			if b.GPU == a.GPU && b.Device == a.Device && b.limited() {
				tenants = append(tenants, usage.Tenant{CorePercent: b.Limits.CorePercent})
			}
		}
	}
	count(r)
	for uid, other := range d.booked {
		if uid != r.UID {
			count(other)
		}
	}
	return usage.BestEffort(tenants)
}
