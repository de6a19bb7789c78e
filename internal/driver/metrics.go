package driver

import (
	"errors"
	"io/fs"

	"github.com/prometheus/client_golang/prometheus"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"aliquot.dev/aliquot/internal/quota"
)

// metrics are what a driver tells monitoring. Each driver has its own registry.
type metrics struct {
	registry  *prometheus.Registry
	prepare   *prometheus.HistogramVec
	unprepare *prometheus.HistogramVec
	publish   prometheus.Counter
	mended    *prometheus.CounterVec
}

// What reconciliation does, by which aliquot_reconcile_actions_total is counted.
const (
	actionUnprepared = "unprepared"       // a claim that the API does not have any more
	actionSetAside   = "record_set_aside" // a record that could not be read
	actionRebuilt    = "record_rebuilt"   // from the API
	actionOrphan     = "orphan_removed"   // files without a record
	actionFailed     = "failed"           // one of these, or the look at one claim
)

// buckets reach to the 45 s after which the kubelet gives a call up. A call that makes partitions takes seconds.
var buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 45}

func newMetrics(d *Driver) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		prepare: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "aliquot_claim_prepare_duration_seconds", Buckets: buckets,
			Help: "How long it took to prepare a claim, by result: ok, or the reason why it failed.",
		}, []string{"result"}),
		unprepare: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "aliquot_claim_unprepare_duration_seconds", Buckets: buckets,
			Help: "How long it took to unprepare a claim, by result: ok, or the reason why it failed.",
		}, []string{"result"}),
		publish: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aliquot_publish_failures_total",
			Help: "How often the node's ResourceSlices could not be written as they are to be.",
		}),
		mended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aliquot_reconcile_actions_total",
			Help: "What was done to make the node agree with the API.",
		}, []string{"action"}),
	}
	for _, action := range []string{actionUnprepared, actionSetAside, actionRebuilt, actionOrphan, actionFailed} {
		m.mended.WithLabelValues(action) // 0 from the beginning, so that a rate shows the first one
	}
	m.registry.MustRegister(m.prepare, m.unprepare, m.publish, m.mended,
		gauge("aliquot_prepared_claims", "Claims that are prepared on this node.", func() (n int) { return len(d.booked) }, d),
		gauge("aliquot_prepared_shares", "Shares, whole GPUs and partitions that prepared claims have on this node.", func() (n int) {
			for _, r := range d.booked {
				n += len(r.Allocations)
			}
			return n
		}, d),
		faults{d.health})
	return m
}

// faults tells of what is wrong with GPUs, one series each while it lasts.
type faults struct{ *health }

var faultsDesc = prometheus.NewDesc("aliquot_gpu_faults", "What is wrong with a GPU of this node, 1 while it is.", []string{"uuid", "fault", "severity"}, nil)

func (f faults) Describe(descs chan<- *prometheus.Desc) { descs <- faultsDesc }

func (f faults) Collect(metrics chan<- prometheus.Metric) {
	patients, _ := f.all()
	for uuid, p := range patients {
		for _, a := range p.Ailments {
			metrics <- prometheus.MustNewConstMetric(faultsDesc, prometheus.GaugeValue, 1, uuid, a.Kind, string(a.Severity))
		}
	}
}

func gauge(name, help string, read func() int, d *Driver) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return float64(read())
	})
}

// Metrics are for a /metrics endpoint.
func (d *Driver) Metrics() prometheus.Gatherer { return d.metrics.registry }

// errHardware is why nothing can be prepared while the GPUs do not answer.
var errHardware = errors.New("GPUs of this node cannot be prepared now, will be tried again")

// reasonOf puts an error into one of the few kinds that call for different people: who wrote the claim, who runs the
// scheduler, or who runs the node.
func reasonOf(err error) string {
	var invalid utilerrors.Aggregate
	var file *fs.PathError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, quota.ErrTwoModes), errors.Is(err, errMode):
		return "mode"
	case errors.Is(err, quota.ErrOvercommitted):
		return "overcommitted"
	case errors.Is(err, errHardware):
		return "hardware"
	case errors.As(err, &file):
		return "storage"
	case errors.As(err, &invalid):
		return "parameters"
	}
	return "other"
}
