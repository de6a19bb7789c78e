package sharequota

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aliquot.dev/aliquot/api/v1alpha1"
)

const (
	// Lifetime is how long a reservation stands for a claim that is not stored. It must be longer than a create request
	// can take in the API server, 34 s.
	Lifetime = 90 * time.Second

	// settle gathers what happens to the claims of a namespace before they are counted again.
	settle = 500 * time.Millisecond
	// resync is when a quota is counted although nothing happened: the largest device may be another.
	resync = 5 * time.Minute
)

// Reconciler counts the claims of each ShareQuota anew when they change, in the replica that leads, and says so where a
// namespace has more than it may.
type Reconciler struct {
	ledger   *Ledger
	recorder events.EventRecorder
	now      func() time.Time

	// seen is when each reservation was first seen here, by quota. Only Reconcile uses it, and it runs once at a time.
	seen map[types.NamespacedName]map[types.UID]time.Time
}

// NewReconciler returns a reconciler of what the ledger counts.
func NewReconciler(ledger *Ledger, recorder events.EventRecorder) *Reconciler {
	return &Reconciler{ledger: ledger, recorder: recorder, now: time.Now, seen: map[types.NamespacedName]map[types.UID]time.Time{}}
}

// SetupWithManager adds the reconciler to a manager whose scheme knows ShareQuota. Of claims only the metadata is watched.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).
		Named("sharequota").
		Watches(&v1alpha1.ShareQuota{}, later(itself)).
		WatchesMetadata(&resourceapi.ResourceClaim{}, later(r.quotasOf)).
		Complete(r)
}

// later enqueues after a while, so that a burst of events is counted once.
func later(quotas func(context.Context, client.Object) []types.NamespacedName) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, object client.Object, q queue) {
		for _, name := range quotas(ctx, object) {
			q.AddAfter(reconcile.Request{NamespacedName: name}, settle)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { enqueue(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, e.Object, q) },
	}
}

func itself(_ context.Context, quota client.Object) []types.NamespacedName {
	return []types.NamespacedName{client.ObjectKeyFromObject(quota)}
}

// quotasOf names the quotas that count a claim.
func (r *Reconciler) quotasOf(ctx context.Context, claim client.Object) []types.NamespacedName {
	var list v1alpha1.ShareQuotaList
	if err := r.ledger.client.List(ctx, &list, client.InNamespace(claim.GetNamespace())); err != nil {
		klog.FromContext(ctx).Error(err, "A change of a claim is counted later", "claim", klog.KObj(claim))
		return nil
	}
	var names []types.NamespacedName
	for i := range list.Items {
		names = append(names, client.ObjectKeyFromObject(&list.Items[i]))
	}
	return names
}

// Reconcile counts one quota anew.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var quota v1alpha1.ShareQuota
	if err := r.ledger.live.Get(ctx, request.NamespacedName, &quota); err != nil {
		if apierrors.IsNotFound(err) {
			delete(r.seen, request.NamespacedName)
			forget(request.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("read ShareQuota %s: %w", request, err)
	}
	before := quota.DeepCopy()
	if err := r.ledger.recount(ctx, &quota, r.ended(before)); err != nil {
		return reconcile.Result{}, err
	}
	news := r.judge(&quota)
	if !equality.Semantic.DeepEqual(before.Status, quota.Status) {
		if err := r.ledger.client.Status().Update(ctx, &quota); err != nil {
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				return reconcile.Result{RequeueAfter: settle}, nil // a claim was let in meanwhile
			}
			return reconcile.Result{}, fmt.Errorf("write status of ShareQuota %s: %w", request, err)
		}
	}
	if news != "" {
		r.recorder.Eventf(&quota, nil, corev1.EventTypeWarning, v1alpha1.ConditionExceeded, "Count", "%s", news)
	}
	report(&quota)
	return reconcile.Result{RequeueAfter: r.next(&quota)}, nil
}

// ended says which reservations have stood long enough. It measures from when they were first seen here, with this
// process's clock, since the clock of the replica that made them may be another's.
func (r *Reconciler) ended(quota *v1alpha1.ShareQuota) func(types.UID) bool {
	name, now := client.ObjectKeyFromObject(quota), r.now()
	seen := map[types.UID]time.Time{}
	for _, reservation := range quota.Status.Reservations {
		first, ok := r.seen[name][reservation.UID]
		if !ok {
			first = now
		}
		seen[reservation.UID] = first
	}
	r.seen[name] = seen
	return func(uid types.UID) bool { return now.Sub(seen[uid]) >= Lifetime }
}

// next is when a reservation may have ended.
func (r *Reconciler) next(quota *v1alpha1.ShareQuota) time.Duration {
	wait := resync
	for _, reservation := range quota.Status.Reservations {
		first := r.seen[client.ObjectKeyFromObject(quota)][reservation.UID]
		wait = min(wait, max(first.Add(Lifetime).Sub(r.now()), settle))
	}
	return wait
}

// judge sets the condition that says whether a quota is exceeded, and returns what there is to tell of it if that is new.
func (r *Reconciler) judge(quota *v1alpha1.ShareQuota) string {
	condition := metav1.Condition{Type: v1alpha1.ConditionExceeded, Status: metav1.ConditionFalse, Reason: "WithinLimits", ObservedGeneration: quota.Generation}
	if hard := quota.Spec.Hard; hard != nil {
		if found := over(hard, Amount{}, read(*quota.Status.Used)); len(found) > 0 {
			condition.Status, condition.Reason = metav1.ConditionTrue, "OverLimits"
			condition.Message = fmt.Sprintf("namespace %s uses %s: no new claims until it has less; what runs is left alone", quota.Namespace, join(found, func(e excess) string {
				return fmt.Sprintf("%s, ShareQuota %q allows %s", e.text(e.amount), quota.Name, plain(e, e.limit))
			}))
		}
	}
	was := meta.IsStatusConditionTrue(quota.Status.Conditions, condition.Type)
	meta.SetStatusCondition(&quota.Status.Conditions, condition)
	if was {
		return ""
	}
	return condition.Message
}
