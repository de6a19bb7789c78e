package sharequota

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"aliquot.dev/aliquot/api/v1alpha1"
)

var (
	labels = []string{"namespace", "sharequota", "resource"}
	used   = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "aliquot_sharequota_used",
		Help: "What the claims of a namespace count for: memory in bytes, cores in percent of one device, shares.",
	}, labels)
	hard = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "aliquot_sharequota_hard",
		Help: "What a namespace's ShareQuota allows in all: memory in bytes, cores in percent of one device, shares.",
	}, labels)
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "aliquot_sharequota_failures_total",
		Help: "Claims and templates that passed although they could not be counted.",
	})
)

func init() {
	metrics.Registry.MustRegister(used, hard, failures)
}

// report sets the gauges of a quota that was counted.
func report(quota *v1alpha1.ShareQuota) {
	forget(types.NamespacedName{Namespace: quota.Namespace, Name: quota.Name}) // limits that are gone
	set := func(gauge *prometheus.GaugeVec, resource string, value int64) {
		gauge.WithLabelValues(quota.Namespace, quota.Name, resource).Set(float64(value))
	}
	amount := read(*quota.Status.Used)
	set(used, "memory", amount.Memory)
	set(used, "cores", amount.Cores)
	set(used, "shares", amount.Shares)
	limits := quota.Spec.Hard
	if limits == nil {
		return
	}
	if limits.Memory != nil {
		set(hard, "memory", limits.Memory.Value())
	}
	if limits.Cores != nil {
		set(hard, "cores", *limits.Cores)
	}
	if limits.Shares != nil {
		set(hard, "shares", *limits.Shares)
	}
}

func forget(name types.NamespacedName) {
	match := prometheus.Labels{"namespace": name.Namespace, "sharequota": name.Name}
	used.DeletePartialMatch(match)
	hard.DeletePartialMatch(match)
}
