package sharequota

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// recount sets a quota's status to what the stored claims and the reservations of those that are not stored yet count for.
// The quota must have been read before, and the caller must write it by compare and swap.
func (l *Ledger) recount(ctx context.Context, quota *v1alpha1.ShareQuota, ended func(types.UID) bool) error {
	largest, err := l.largest(ctx)
	if err != nil {
		return err
	}
	var claims resourceapi.ResourceClaimList
	if err := l.live.List(ctx, &claims, client.InNamespace(quota.Namespace)); err != nil {
		return fmt.Errorf("list claims of namespace %s: %w", quota.Namespace, err)
	}
	stored := map[types.UID]bool{}
	names := map[string]Amount{} // two claims of one name are never stored together
	for i := range claims.Items {
		claim := &claims.Items[i]
		stored[claim.UID] = true
		names[claim.Name] = Claim(claim, largest, l.ours)
	}
	quota.Status.Reservations = slices.DeleteFunc(quota.Status.Reservations, func(r v1alpha1.ShareReservation) bool {
		return stored[r.UID] || ended(r.UID)
	})
	for _, r := range quota.Status.Reservations {
		names[r.Name] = names[r.Name].most(read(r.ShareAmounts))
	}
	var total Amount
	for _, amount := range names {
		total = total.plus(amount)
	}
	used := total.written()
	quota.Status.Used, quota.Status.Hard = &used, quota.Spec.Hard.DeepCopy()
	return nil
}

func never(types.UID) bool { return false }

func is(uid types.UID) func(v1alpha1.ShareReservation) bool {
	return func(r v1alpha1.ShareReservation) bool { return r.UID == uid }
}
