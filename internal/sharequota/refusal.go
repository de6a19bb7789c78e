package sharequota

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// Refusal is why a claim or a template is not let in: one line that says what is too much and what helps. Any other error
// of this package says that the API server could not be asked.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// excess is one amount that is over its limit.
type excess struct {
	amount, used, limit int64
	text                func(int64) string
}

// over lists what of an amount is over the limits.
func over(limits *v1alpha1.HardLimits, used, amount Amount) []excess {
	var found []excess
	check := func(limit *int64, used, amount int64, text func(int64) string) {
		// A claim that takes none of an amount does not add to it, even if there is too much of it already.
		if limit != nil && amount > 0 && add(used, amount) > *limit {
			found = append(found, excess{amount: amount, used: used, limit: *limit, text: text})
		}
	}
	if limits.Memory != nil {
		limit := limits.Memory.Value()
		check(&limit, used.Memory, amount.Memory, memoryText)
	}
	check(limits.Cores, used.Cores, amount.Cores, coresText)
	check(limits.Shares, used.Shares, amount.Shares, sharesText)
	return found
}

// refuse returns a Refusal if an amount does not fit beside what is used, else nil.
func refuse(quota *v1alpha1.ShareQuota, used, amount Amount) error {
	if alone := over(quota.Spec.Hard, Amount{}, amount); len(alone) > 0 {
		return Refusal(fmt.Sprintf("asks for %s in all of namespace %s: ask for less", join(alone, func(e excess) string {
			return fmt.Sprintf("%s, ShareQuota %q allows %s", e.text(e.amount), quota.Name, plain(e, e.limit))
		}), quota.Namespace))
	}
	found := over(quota.Spec.Hard, used, amount)
	if len(found) == 0 {
		return nil
	}
	return Refusal(fmt.Sprintf("namespace %s would use %s: ask for less, or free a share", quota.Namespace, join(found, func(e excess) string {
		return fmt.Sprintf("%s, ShareQuota %q allows %s (%s are used)", e.text(add(e.used, e.amount)), quota.Name, plain(e, e.limit), plain(e, e.used))
	})))
}

func join(found []excess, text func(excess) string) string {
	var parts []string
	for _, e := range found {
		parts = append(parts, text(e))
	}
	return strings.Join(parts, ", and ")
}

// plain is the number of a text without what it counts.
func plain(e excess, n int64) string {
	number, _, _ := strings.Cut(e.text(n), " ")
	return number
}

func memoryText(n int64) string {
	return resource.NewQuantity(n, resource.BinarySI).String() + " of GPU memory"
}

func coresText(n int64) string { return strconv.FormatInt(n, 10) + " cores (percent of a GPU)" }

func sharesText(n int64) string { return strconv.FormatInt(n, 10) + " shares of GPUs" }
