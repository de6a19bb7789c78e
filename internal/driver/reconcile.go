package driver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/inventory"
	"aliquot.dev/aliquot/internal/quota"
)

// loadRecords makes the books what is on disk, whoever wrote it.
func (d *Driver) loadRecords() error {
	return d.exclusively(d.load)
}

// load books what is prepared. A record that cannot be read is set aside; reconcile rebuilds it from the API, as it does one that is missing,
// and until then what it was known to hold stays booked.
func (d *Driver) load() error {
	if err := d.records.sweep(); err != nil {
		return err
	}
	var err error
	if d.ours, err = d.marks.load(); err != nil {
		return err
	}
	good, corrupt, err := d.records.uids()
	if err != nil {
		return err
	}
	clear(d.lost)
	for _, uid := range corrupt {
		d.lost[uid] = unreadable
	}
	for _, uid := range good {
		if err := d.loadRecord(uid); err != nil {
			return err
		}
	}
	d.missRecords(good)
	d.bookLost()
	for _, uid := range d.ledger.Claims() {
		if !d.isLost(string(uid)) && !slices.Contains(good, string(uid)) {
			d.ledger.Release(uid)
			delete(d.booked, uid)
		}
	}
	d.follow()
	return nil
}

// missRecords finds specs and share files of claims that have no record. Only the API can tell whether containers may start
// with them, or have.
func (d *Driver) missRecords(recorded []string) {
	stored, err := d.store.Claims()
	if err != nil {
		klog.Background().Error(err, "Look for files without a record")
	}
	for _, uid := range stored {
		if !d.isLost(uid) && !slices.Contains(recorded, uid) {
			d.lost[uid] = missing
		}
	}
}

// bookLost books what the quota files of claims say that have no record and are not booked: a process may still use them. Of whole GPUs and of
// partitions, which the hardware keeps, there is nothing to go by.
func (d *Driver) bookLost() {
	for uid := range d.lost {
		if _, known := d.booked[types.UID(uid)]; known {
			continue
		}
		quotas, err := d.store.Quotas(uid)
		if err != nil {
			klog.Background().Error(err, "Look for what a claim without a record holds", "uid", uid)
		}
		var shares []quota.Share
		for _, q := range quotas {
			if strings.HasPrefix(q.GPU, "GPU-") {
				shares = append(shares, quota.Share{GPU: q.GPU, Limits: quota.Limits{
					MemoryBytes: q.MemoryBytes, CorePercent: q.CorePercent, CorePolicy: v1alpha1.CorePolicy(q.CorePolicy), Priority: q.Priority,
				}})
			}
		}
		if len(shares) > 0 {
			d.ledger.Adopt(types.UID(uid), shares)
		}
	}
}

func (d *Driver) loadRecord(uid string) error {
	r, err := d.records.read(uid)
	newer := errors.Is(err, errNewer)
	if _, known := d.booked[r.UID]; newer && !known {
		klog.Background().Error(err, "What is understood of the record is booked, and nothing is done with the claim")
		d.warnNode("RecordNewer", "Restore", "%v", err)
	}
	if err == nil || newer {
		d.ledger.Adopt(r.UID, r.shares())
		d.booked[r.UID] = r
		delete(d.lost, uid)
		return nil
	}
	klog.Background().Error(err, "Record is set aside and rebuilt from the API", "uid", uid)
	d.warnNode("RecordCorrupt", "Restore", "%v; it is set aside and rebuilt from the API", err)
	d.lost[uid] = unreadable
	return d.count(actionSetAside, d.records.setAside(uid))
}

// apiPatience is how long reconciling waits for an API server that hangs. The kubelet is not served before the first time
// is through, and claims whose files are right need nothing of it.
const apiPatience = 10 * time.Second

// reconcile makes the node agree with the API: claims that are gone are unprepared, those that live have their spec and
// files, and nothing is left that belongs to no claim. What cannot be decided now, because the API or the hardware does
// not answer, is left as it is until the next time.
func (d *Driver) reconcile(ctx context.Context) {
	ctx, span := d.tracer.Start(ctx, "Reconcile")
	defer span.End()
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	if err := d.loadRecords(); err != nil {
		logger.Error(err, "Reconcile")
		return
	}
	good, _, err := d.records.uids()
	if err != nil {
		logger.Error(err, "Reconcile")
		return
	}
	for answer := range d.askAhead(ctx, good) {
		uid := answer.uid
		if err := d.span(ctx, "ReconcileClaim", func(ctx context.Context) error { return d.reconcileClaim(ctx, answer) },
			claimAttributes(answer.record.Namespace, answer.record.Name, types.UID(uid))...); err != nil {
			d.metrics.mended.WithLabelValues(actionFailed).Inc()
			logger.Error(err, "Reconcile", "uid", uid)
		}
	}
	if err := d.rebuildLost(ctx); err != nil {
		logger.Error(err, "Rebuild records")
	}
	if err := d.removeUnneeded(ctx); err != nil {
		logger.Error(err, "Remove partitions that belong to no claim")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ledger.Check(); err != nil {
		logger.Error(err, "GPUs are overcommitted")
		d.warnNode("Overcommitted", "Reconcile", "%v", err)
	}
}

// answer is what the API says of the claim of a record.
type answer struct {
	uid     string
	record  record
	err     error // the record cannot be read
	live    bool
	unknown error // why nobody can say whether the claim lives
}

// questions is how many claims the API is asked of at a time. A node may have a thousand, and one after another they would
// take seconds.
const questions = 16

// askAhead asks the API of claims and gives the answers in order, each when it is wanted: it must not be old when something
// is done for it.
func (d *Driver) askAhead(ctx context.Context, uids []string) iter.Seq[answer] {
	return func(yield func(answer) bool) {
		asked := make(chan chan answer, questions)
		for next := 0; next < len(uids) || len(asked) > 0; {
			for ; next < len(uids) && len(asked) < questions; next++ {
				reply := make(chan answer, 1)
				go func(uid string) { reply <- d.askOf(ctx, uid) }(uids[next])
				asked <- reply
			}
			if !yield(<-<-asked) {
				return
			}
		}
	}
}

func (d *Driver) askOf(ctx context.Context, uid string) answer {
	a := answer{uid: uid}
	if a.record, a.err = d.records.read(uid); a.err == nil {
		a.live, a.unknown = d.isLive(ctx, a.record)
	}
	return a
}

// reconcileClaim unprepares the claim of one record if it is gone and restores its files if it lives, or if nobody can
// say that it does not.
func (d *Driver) reconcileClaim(ctx context.Context, a answer) error {
	if a.err != nil {
		return a.err
	}
	if !a.live && a.unknown == nil {
		if err := d.inUse(a.record); err != nil {
			d.warnNode("ShareInUse", "Reconcile", "%v", err)
			return err
		}
	}
	return d.alone(ctx, func() []string { return d.partitioned(a.record.Allocations) }, func(ctx context.Context) error { return d.settle(ctx, a) })
}

// settle is the part of reconcileClaim that changes something.
func (d *Driver) settle(ctx context.Context, a answer) error {
	uid, r, unknown := a.uid, a.record, a.unknown
	if now, err := d.records.read(uid); err != nil || !reflect.DeepEqual(now, r) {
		return nil // the kubelet prepared or unprepared it while the API was asked
	}
	if !a.live && unknown == nil {
		klog.FromContext(ctx).Info("Claim is gone", "claim", klog.KRef(r.Namespace, r.Name), "uid", uid)
		return d.count(actionUnprepared, d.unprepareGone(ctx, r))
	}
	if d.node.err != nil {
		return unknown
	}
	err := run(ctx, d.effects(r, d.restore))
	if err != nil && d.hasGPUsOf(r) { // of a GPU that is lost everybody was told
		d.warnNode("RestoreFailed", "Reconcile", "claim %s/%s: %v", r.Namespace, r.Name, err)
	}
	return errors.Join(unknown, err)
}

func (d *Driver) hasGPUsOf(r record) bool {
	return !slices.ContainsFunc(r.Allocations, func(a allocation) bool {
		_, ok := d.node.gpu(a.GPU)
		return !ok
	})
}

// unprepareGone tells what keeps it from removing a claim that the kubelet does not ask for any more.
func (d *Driver) unprepareGone(ctx context.Context, r record) error {
	err := d.unprepare(ctx, string(r.UID))
	if err != nil {
		d.warnNode("UnprepareFailed", "Reconcile", "claim %s/%s (uid %s) is gone, and its share cannot be given back: %v", r.Namespace, r.Name, r.UID, err)
	}
	return err
}

// isLive says whether the API still gives the claim what its record says.
func (d *Driver) isLive(ctx context.Context, r record) (bool, error) {
	claim, err := d.config.Client.ResourceV1().ResourceClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	if claim.UID != r.UID || claim.Status.Allocation == nil {
		return false, nil
	}
	for _, a := range r.Allocations {
		if !slices.ContainsFunc(claim.Status.Allocation.Devices.Results, a.is) {
			return false, nil
		}
	}
	return true, nil
}

// is says whether a result is this allocation.
func (a allocation) is(result resourceapi.DeviceRequestAllocationResult) bool {
	return result.Driver == v1alpha1.DriverName && result.Pool == a.Pool && result.Device == a.Device &&
		result.Request == a.Request && (result.ShareID == nil && a.ShareID == "" || result.ShareID != nil && *result.ShareID == a.ShareID)
}

// loss is why a claim has no record.
type loss int

const (
	unreadable loss = iota + 1 // it was set aside
	missing                    // as after a loss of power that only took the record
)

func (d *Driver) isLost(uid string) bool { return d.lost[uid] != 0 }

// rebuildLost prepares the claims anew that have no record, and unprepares those that the API does not have or has
// moved elsewhere: only a list can tell, since the UID is all that is left.
func (d *Driver) rebuildLost(ctx context.Context) error {
	lost := d.lostClaims()
	if len(lost) == 0 {
		return nil
	}
	claims, err := d.config.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	here := map[string]*resourceapi.ResourceClaim{}
	for i := range claims.Items {
		if claim := &claims.Items[i]; d.isHere(claim) {
			here[string(claim.UID)] = claim
		}
	}
	var errs []error
	for _, uid := range lost {
		if err := d.alone(ctx, d.cardsOf(types.UID(uid), here[uid]), func(ctx context.Context) error { return d.rebuild(ctx, uid, here[uid]) }); err != nil {
			errs = append(errs, fmt.Errorf("claim %s: %w", uid, err))
		}
	}
	return errors.Join(errs...)
}

// rebuild settles one lost claim, nil if it is not here any more.
func (d *Driver) rebuild(ctx context.Context, uid string, claim *resourceapi.ResourceClaim) error {
	why := d.lost[uid]
	if why == 0 {
		return nil // the kubelet prepared or unprepared it while the API was asked
	}
	if claim == nil {
		if err := d.inUse(record{UID: types.UID(uid)}); err != nil {
			d.warnNode("ShareInUse", "Reconcile", "%v", err)
			return err
		}
		action := actionUnprepared
		if why == missing {
			action = actionOrphan
			klog.FromContext(ctx).Info("Removing files that belong to no claim", "uid", uid)
		}
		return d.count(action, d.unprepare(ctx, uid))
	}
	if why == missing {
		d.warnNode("RecordMissing", "Restore", "claim %s/%s (uid %s) is prepared here and has no record; it is made again from the API", claim.Namespace, claim.Name, uid)
	}
	_, err := d.prepare(ctx, claim)
	return d.count(actionRebuilt, err)
}

// isHere says whether a claim has anything of this node.
func (d *Driver) isHere(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(result resourceapi.DeviceRequestAllocationResult) bool {
			return result.Driver == v1alpha1.DriverName && result.Pool == inventory.PoolName(d.config.NodeName)
		})
}

// lostClaims are the claims whose record could not be read, as far as that can be mended now.
func (d *Driver) lostClaims() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node.err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(d.lost))
}

// count counts an action that succeeded, and returns what it returned.
func (d *Driver) count(action string, err error) error {
	if err == nil {
		d.metrics.mended.WithLabelValues(action).Inc()
	}
	return err
}
