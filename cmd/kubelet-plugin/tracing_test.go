package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// collectorStub keeps what an OTLP collector is sent: of each span, what it is of and its name.
type collectorStub struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []string
}

func (c *collectorStub) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceSpans {
		var resource []string
		for _, attribute := range of.Resource.Attributes {
			resource = append(resource, attribute.Key+"="+attribute.Value.GetStringValue())
		}
		slices.Sort(resource)
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				c.spans = append(c.spans, strings.Join(resource, " ")+": "+span.Name)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func startCollector(t *testing.T) (*collectorStub, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stub, server := &collectorStub{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, stub)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return stub, listener.Addr().String()
}

// request asks a stand-in for the API server, and returns the trace that it was told of.
func request(t *testing.T, traces traces, query string) string {
	t.Helper()
	var parent string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) { parent = request.Header.Get("traceparent") }))
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"?"+query, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := traces.requests(http.DefaultTransport).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return parent
}

func TestTracesReachTheCollector(t *testing.T) {
	stub, address := startCollector(t)
	traces, err := startTracing(t.Context(), flags{nodeName: "a-node", tracingEndpoint: address, tracingRate: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	_, span := traces.provider.Tracer("test").Start(t.Context(), "Prepare")
	span.End()
	if request(t, traces, "") == "" {
		t.Error("the API server is not told which trace a request is of")
	}
	if got := request(t, traces, "watch=true"); got != "" {
		t.Errorf("a watch is part of trace %s", got)
	}
	traces.stop()
	of := "k8s.node.name=a-node service.name=aliquot-kubelet-plugin service.version=dev: "
	if diff := cmp.Diff([]string{of + "Prepare", of + "HTTP GET"}, stub.spans); diff != "" {
		t.Errorf("the collector was sent (-want +got):\n%s", diff)
	}
}

func TestNoTraceIsSentThatIsNotSampled(t *testing.T) {
	stub, address := startCollector(t)
	traces, err := startTracing(t.Context(), flags{tracingEndpoint: address})
	if err != nil {
		t.Fatal(err)
	}
	_, span := traces.provider.Tracer("test").Start(t.Context(), "Prepare")
	span.End()
	traces.stop()
	if len(stub.spans) > 0 {
		t.Errorf("the collector was sent %q", stub.spans)
	}
}

// TestNobodyWaitsForACollector: one that is away must not keep the plugin from serving, nor from ending.
func TestNobodyWaitsForACollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	traces, err := startTracing(t.Context(), flags{tracingEndpoint: listener.Addr().String(), tracingRate: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	_, span := traces.provider.Tracer("test").Start(t.Context(), "Prepare")
	span.End()
	traces.stop()
}

func TestWithoutACollectorNothingIsTraced(t *testing.T) {
	traces, err := startTracing(t.Context(), flags{})
	if err != nil {
		t.Fatal(err)
	}
	defer traces.stop()
	if traces.provider != nil || traces.requests != nil {
		t.Error("something is traced")
	}
}
