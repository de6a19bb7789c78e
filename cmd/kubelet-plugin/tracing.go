package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
)

// flushPatience is how long the end of the plugin waits for a collector.
const flushPatience = 2 * time.Second

// validateTracing finds nothing wrong where no collector is given.
func (f *flags) validateTracing() error {
	if errs := tracingapi.ValidateTracingConfiguration(f.tracing(), nil, field.NewPath("tracing")); len(errs) > 0 {
		return fmt.Errorf("--tracing-endpoint wants the host:port of an OTLP collector, and --tracing-sampling-rate-per-million 0 to 1000000: %w", errs.ToAggregate())
	}
	return nil
}

// tracing is nil where no collector is given.
func (f *flags) tracing() *tracingapi.TracingConfiguration {
	if f.tracingEndpoint == "" {
		return nil
	}
	return &tracingapi.TracingConfiguration{Endpoint: &f.tracingEndpoint, SamplingRatePerMillion: &f.tracingRate}
}

// traces is where spans go; the zero one is nowhere.
type traces struct {
	provider trace.TracerProvider
	requests transport.WrapperFunc // has them for requests to the API server
	stop     func()
}

// startTracing sends spans to the collector from now on, if there is one. What stop finds unsent it still sends, if the collector
// takes it at once.
func startTracing(ctx context.Context, f flags) (traces, error) {
	if f.tracing() == nil {
		return traces{stop: func() {}}, nil
	}
	logger := klog.FromContext(ctx)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Error(err, "Send traces", "endpoint", f.tracingEndpoint) }))
	sender, err := tracing.NewProvider(ctx, f.tracing(), nil, []resource.Option{resource.WithAttributes(
		semconv.ServiceName("aliquot-kubelet-plugin"),
		semconv.ServiceVersion(version),
		semconv.K8SNodeName(f.nodeName),
	)})
	if err != nil {
		return traces{}, fmt.Errorf("send traces to %s: %w", f.tracingEndpoint, err)
	}
	return traces{provider: sender, requests: traceRequests(sender), stop: func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushPatience)
		defer cancel()
		if err := sender.Shutdown(ctx); err != nil {
			logger.Error(err, "Send the last traces", "endpoint", f.tracingEndpoint)
		}
	}}, nil
}

// traceRequests has a span for each request to the API server but watches, which last as long as they can.
func traceRequests(provider trace.TracerProvider) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return otelhttp.NewTransport(next,
			otelhttp.WithTracerProvider(provider),
			otelhttp.WithPropagators(tracing.Propagators()),
			otelhttp.WithFilter(func(request *http.Request) bool { return request.URL.Query().Get("watch") == "" }),
		)
	}
}
