package sharequota

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aliquot.dev/aliquot/api/v1alpha1"
)

const (
	// patience is how long a claim waits for its turn. The webhook's timeout must be longer, or the API server goes on
	// without it.
	patience = 5 * time.Second
	// crowd is how many reservations a quota may have before those that were seen are looked for while one is added.
	crowd = 100
)

// Devices tells which devices are published, from a cache.
type Devices interface {
	Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error)
}

// Ledger lets claims in as long as they fit the ShareQuotas of their namespaces. It keeps nothing itself, so that any number
// of replicas may have one: see the package comment.
type Ledger struct {
	client  client.Client // reads from a cache
	live    client.Reader // reads from the API server
	devices Devices
	ours    func(class string) bool

	// turns let one claim of a namespace go at a time in this replica: else all but one of them would be refused by the
	// API server and try again.
	mutex sync.Mutex
	turns map[string]chan struct{}

	last atomic.Pointer[looked]
}

// New returns a ledger. cached may lag, live must not: it is the manager's API reader. ours says which classes are of this
// driver.
func New(cached client.Client, live client.Reader, devices Devices, ours func(class string) bool) *Ledger {
	return &Ledger{client: cached, live: live, devices: devices, ours: ours, turns: map[string]chan struct{}{}}
}

// Reserve lets in a claim that is about to be stored, or returns a Refusal. Its UID is that which will be stored. A dry run
// is refused alike, but reserves nothing. Called again for the same claim it does nothing.
func (l *Ledger) Reserve(ctx context.Context, claim *resourceapi.ResourceClaim, dryRun bool) error {
	quotas, err := l.quotas(ctx, claim.Namespace)
	if err != nil || len(quotas) == 0 {
		return err
	}
	largest, err := l.largest(ctx)
	if err != nil {
		return err
	}
	amount := Claim(claim, largest, l.ours)
	if amount == (Amount{}) {
		return nil
	}
	if claim.UID == "" {
		return fmt.Errorf("claim %s has no UID yet: only a validating webhook sees it", klog.KObj(claim))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	end, err := l.turn(ctx, claim.Namespace)
	if err != nil {
		return err
	}
	defer end()
	for i, quota := range quotas {
		if err := l.reserve(ctx, quota, claim, amount, dryRun); err != nil {
			l.takeBack(ctx, quotas[:i], claim.UID, dryRun)
			return err
		}
	}
	return nil
}

// Fits returns a Refusal of a template whose claims could never be let in, whatever else the namespace has.
func (l *Ledger) Fits(ctx context.Context, template *resourceapi.ResourceClaimTemplate) error {
	var quotas v1alpha1.ShareQuotaList
	if err := l.client.List(ctx, &quotas, client.InNamespace(template.Namespace)); err != nil {
		return fmt.Errorf("list ShareQuotas of namespace %s: %w", template.Namespace, err)
	}
	if len(quotas.Items) == 0 {
		return nil
	}
	largest, err := l.largest(ctx)
	if err != nil {
		return err
	}
	amount := Spec(&template.Spec.Spec, largest, l.ours)
	for i := range quotas.Items {
		if quota := &quotas.Items[i]; quota.Spec.Hard != nil {
			if err := refuse(quota, Amount{}, amount); err != nil {
				return err
			}
		}
	}
	return nil
}

// largest looks at all devices, so it is asked for only where something is limited, and remembered for the same list.
func (l *Ledger) largest(ctx context.Context) (int64, error) {
	published, err := l.devices.Slices(ctx)
	if err != nil {
		return 0, fmt.Errorf("list ResourceSlices: %w", err)
	}
	if len(published) == 0 {
		return 0, nil
	}
	if last := l.last.Load(); last != nil && &last.published[0] == &published[0] && len(last.published) == len(published) {
		return last.largest, nil
	}
	found := &looked{published: published, largest: Largest(published)}
	l.last.Store(found)
	return found.largest, nil
}

// looked is the largest device of a list.
type looked struct {
	published []resourceapi.ResourceSlice
	largest   int64
}

// quotas names those that bound a namespace's totals, in the order in which all replicas reserve. From a cache that lags this may miss a
// quota that is new: then it is as if the claim had come before it.
func (l *Ledger) quotas(ctx context.Context, namespace string) ([]types.NamespacedName, error) {
	var list v1alpha1.ShareQuotaList
	if err := l.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list ShareQuotas of namespace %s: %w", namespace, err)
	}
	var names []types.NamespacedName
	for i := range list.Items {
		if list.Items[i].Spec.Hard != nil {
			names = append(names, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
	return names, nil
}

// turn waits until no other claim of the namespace is being let in here.
func (l *Ledger) turn(ctx context.Context, namespace string) (end func(), err error) {
	l.mutex.Lock()
	turn, ok := l.turns[namespace]
	if !ok {
		turn = make(chan struct{}, 1)
		l.turns[namespace] = turn
	}
	l.mutex.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, busy(namespace)
	}
}

func busy(namespace string) Refusal {
	return Refusal(fmt.Sprintf("too many claims of namespace %s are being created at once to count them: try again", namespace))
}

// reserve adds a claim to one quota by compare and swap, as often as others come before it.
func (l *Ledger) reserve(ctx context.Context, name types.NamespacedName, claim *resourceapi.ResourceClaim, amount Amount, dryRun bool) error {
	backoff := wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 100, Cap: 200 * time.Millisecond}
	for {
		err := l.tryReserve(ctx, name, claim, amount, dryRun)
		if !apierrors.IsConflict(err) {
			return err
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return busy(name.Namespace)
		}
	}
}

// tryReserve returns a conflict if the quota changed since it was read.
func (l *Ledger) tryReserve(ctx context.Context, name types.NamespacedName, claim *resourceapi.ResourceClaim, amount Amount, dryRun bool) error {
	var quota v1alpha1.ShareQuota
	if err := l.live.Get(ctx, name, &quota); err != nil {
		return ignoreNotFound(err, name)
	}
	if quota.Spec.Hard == nil || slices.ContainsFunc(quota.Status.Reservations, is(claim.UID)) {
		return nil
	}
	more := beyond(&quota, claim.Name, amount)
	// What the status says may be out of date, or not be there yet. It says enough only where the claim fits beside it.
	if quota.Status.Used == nil || len(quota.Status.Reservations) >= crowd || refuse(&quota, read(*quota.Status.Used), more) != nil {
		if err := l.recount(ctx, &quota, never); err != nil {
			return err
		}
		more = beyond(&quota, claim.Name, amount)
		if err := refuse(&quota, read(*quota.Status.Used), more); err != nil {
			return err
		}
	}
	if dryRun {
		return nil
	}
	used := read(*quota.Status.Used).plus(more).written()
	quota.Status.Used = &used
	quota.Status.Reservations = append(quota.Status.Reservations, v1alpha1.ShareReservation{
		UID: claim.UID, Name: claim.Name, ShareAmounts: amount.written(), Time: metav1.Now(),
	})
	return ignoreNotFound(l.client.Status().Update(ctx, &quota), name)
}

// beyond is what a claim adds to the reservations that its name has already.
func beyond(quota *v1alpha1.ShareQuota, name string, amount Amount) Amount {
	var has Amount
	for _, r := range quota.Status.Reservations {
		if r.Name == name {
			has = has.most(read(r.ShareAmounts))
		}
	}
	return amount.minus(has)
}

// takeBack removes the reservations of a claim that another quota refused. Those that it cannot remove end by themselves.
func (l *Ledger) takeBack(ctx context.Context, quotas []types.NamespacedName, claim types.UID, dryRun bool) {
	if dryRun {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for _, name := range quotas {
		err := wait.ExponentialBackoffWithContext(ctx, wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 5}, func(ctx context.Context) (bool, error) {
			err := l.remove(ctx, name, claim)
			return err == nil, ignoreConflict(err)
		})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("A reservation stays until it ends", "shareQuota", name, "claimUID", claim, "err", err)
		}
	}
}

func (l *Ledger) remove(ctx context.Context, name types.NamespacedName, claim types.UID) error {
	var quota v1alpha1.ShareQuota
	if err := l.live.Get(ctx, name, &quota); err != nil {
		return ignoreNotFound(err, name)
	}
	if err := l.recount(ctx, &quota, func(uid types.UID) bool { return uid == claim }); err != nil {
		return err
	}
	return ignoreNotFound(l.client.Status().Update(ctx, &quota), name)
}

// ignoreNotFound takes a quota that was deleted meanwhile for none.
func ignoreNotFound(err error, name types.NamespacedName) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("ShareQuota %s: %w", name, err)
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
