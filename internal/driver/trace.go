package driver

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apimachinery/pkg/types"
)

// tracerName is the scope of this package's spans.
const tracerName = "aliquot.dev/aliquot/internal/driver"

func newTracer(provider trace.TracerProvider) trace.Tracer {
	if provider == nil {
		provider = noop.NewTracerProvider()
	}
	return provider.Tracer(tracerName)
}

// step is a part of a prepare or an unprepare, by which name a trace shows it.
type step struct {
	name string
	do   func(context.Context) error
}

// run does one step after another, until one fails.
func run(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := s.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// traced has a span for each step. Reconciling, where the steps of a thousand claims find nothing to do, does without.
func (d *Driver) traced(steps []step) []step {
	steps = slices.Clone(steps)
	for i, s := range steps {
		steps[i].do = func(ctx context.Context) error { return d.span(ctx, s.name, s.do) }
	}
	return steps
}

// span runs what it is given in a span, which tells why it failed.
func (d *Driver) span(ctx context.Context, name string, do func(context.Context) error, attributes ...attribute.KeyValue) error {
	ctx, span := d.tracer.Start(ctx, name, trace.WithAttributes(attributes...))
	defer span.End()
	err := do(ctx)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(semconv.ErrorTypeKey.String(reasonOf(err)))
	}
	return err
}

// timed is a span whose length is measured too, by its result.
func (d *Driver) timed(ctx context.Context, durations *prometheus.HistogramVec, name string, do func(context.Context) error, attributes ...attribute.KeyValue) error {
	start := time.Now()
	err := d.span(ctx, name, do, attributes...)
	durations.WithLabelValues(reasonOf(err)).Observe(time.Since(start).Seconds())
	return err
}

// claimAttributes tell which claim a span is for. There is no convention for claims yet: they follow that of other objects.
func claimAttributes(namespace, name string, uid types.UID) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.K8SNamespaceName(namespace),
		attribute.String("k8s.resourceclaim.name", name),
		attribute.String("k8s.resourceclaim.uid", string(uid)),
	}
}

// slotAttributes tell which partition a span is for.
func slotAttributes(s slot) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.HwID(s.gpu),
		attribute.String("aliquot.mig.profile", s.profile),
		attribute.Int("aliquot.mig.start", s.placement.Start),
	}
}
