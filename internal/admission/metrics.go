package admission

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	handled = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aliquot_admission_requests_total",
		Help: "Objects that a webhook was asked about, by outcome: allowed, warned, defaulted or denied.",
	}, []string{"webhook", "outcome"})
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aliquot_admission_failures_total",
		Help: "Objects that passed with checks left out, because a webhook failed or could not read the cluster.",
	}, []string{"webhook"})
)

func init() {
	metrics.Registry.MustRegister(handled, failures)
}
