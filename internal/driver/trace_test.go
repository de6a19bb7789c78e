package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// drawn are the traces that were recorded, a span a line below the one it is part of.
func drawn(recorder *tracetest.SpanRecorder) string {
	parts := map[trace.SpanID][]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Started() {
		if stub := tracetest.SpanStubFromReadOnlySpan(span); !stub.EndTime.IsZero() {
			parts[span.Parent().SpanID()] = append(parts[span.Parent().SpanID()], span)
		}
	}
	var out strings.Builder
	var draw func(of trace.SpanID, depth int)
	draw = func(of trace.SpanID, depth int) {
		for _, span := range parts[of] {
			fmt.Fprint(&out, strings.Repeat("  ", depth), span.Name())
			for _, event := range span.Events() {
				fmt.Fprintf(&out, " %q", event.Name)
			}
			for _, attribute := range span.Attributes() {
				fmt.Fprintf(&out, " %s=%s", attribute.Key, attribute.Value.String())
			}
			if span.Status().Code == codes.Error {
				fmt.Fprintf(&out, " failed: %s", span.Status().Description)
			}
			fmt.Fprintln(&out)
			draw(span.SpanContext().SpanID(), depth+1)
		}
	}
	draw(trace.SpanID{}, 0)
	return out.String()
}

// tracedRig is a driver with a recorder of what it tells from now on.
func tracedRig(t *testing.T) (*rig, *Driver, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	r := newRig(t, "h100x8")
	r.config.Traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	d := r.start(t)
	recorder.Reset()
	return r, d, recorder
}

func wantTraces(t *testing.T, recorder *tracetest.SpanRecorder, want ...string) {
	t.Helper()
	if diff := cmp.Diff(strings.Join(want, "\n")+"\n", drawn(recorder)); diff != "" {
		t.Errorf("traces (-want +got):\n%s", diff)
	}
	recorder.Reset()
}

const (
	ofClaim     = " k8s.namespace.name=default k8s.resourceclaim.name=c k8s.resourceclaim.uid=c-uid"
	ofPartition = " hw.id=" + h100GPU0 + " aliquot.mig.profile=1g.10gb aliquot.mig.start=0"
)

func TestTracesTellWhatAPrepareTakesItsTimeFor(t *testing.T) {
	r, d, recorder := tracedRig(t)
	claim := claimOf("c", share("gpu", small, "s1", "1Gi", "0"))
	mustPrepare(t, d, claim)
	made := r.hardware.devices[0].MIG.Partitions[0].UUID
	wantTraces(t, recorder,
		`Prepare "Its turn"`+ofClaim,
		"  WriteRecord",
		"  MakeReady",
		"    FindPartition"+ofPartition,
		"    CreatePartition"+ofPartition,
		"    ReadEdits hw.id="+made,
		"  WriteShares",
		"  WriteSpec",
	)
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	wantTraces(t, recorder,
		`Unprepare "Its turn"`+ofClaim,
		"  RemoveSpec",
		"  RemovePartitions",
		"    DestroyPartition"+ofPartition,
		"    LeaveMIGMode hw.id="+h100GPU0,
		"  RemoveShares",
		"  RemoveRecord",
	)
}

func TestTracesTellWhyAPrepareFailed(t *testing.T) {
	r, d, recorder := tracedRig(t)
	r.hardware.refuses = map[string]error{"create": errors.New("Insufficient Resources")}
	if _, err := prepare(t, d, claimOf("c", share("gpu", small, "s1", "1Gi", "0"))); err == nil {
		t.Fatal("a partition is prepared that could not be made")
	}
	failed := " error.type=other failed: Insufficient Resources"
	wantTraces(t, recorder,
		`Prepare "Its turn"`+ofClaim+failed,
		"  WriteRecord",
		"  MakeReady"+failed,
		"    FindPartition"+ofPartition,
		"    CreatePartition"+ofPartition+failed,
		"    FindPartition"+ofPartition,
	)
}

// TestTracesTellWhatReconcilingDid: of a claim to which nothing was done there is one span, since a node may have a thousand.
func TestTracesTellWhatReconcilingDid(t *testing.T) {
	r, d, recorder := tracedRig(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "0"))
	r.allocate(t, claim)
	mustPrepare(t, d, claim)
	recorder.Reset()
	d.reconcile(quiet(t))
	wantTraces(t, recorder,
		"Reconcile",
		`  ReconcileClaim "Its turn"`+ofClaim,
	)
	r.forget(t, claim)
	_ = d.discover(quiet(t))
	d.reconcile(quiet(t))
	wantTraces(t, recorder,
		"Discover",
		"Reconcile",
		`  ReconcileClaim "Its turn"`+ofClaim,
		"    RemoveSpec",
		"    RemovePartitions",
		"    RemoveShares",
		"    RemoveRecord",
	)
}

// TestEverySpanEnds: one that does not is never sent.
func TestEverySpanEnds(t *testing.T) {
	_, d, recorder := tracedRig(t)
	for _, result := range []string{"gpu-0", "gpu-9"} {
		_, _ = prepare(t, d, claimOf("c", whole("gpu", result)))
	}
	_ = d.discover(quiet(t))
	d.reconcile(quiet(t))
	for _, span := range recorder.Started() {
		if !slices.ContainsFunc(recorder.Ended(), func(ended sdktrace.ReadOnlySpan) bool {
			return ended.SpanContext().SpanID() == span.SpanContext().SpanID()
		}) {
			t.Errorf("span %s never ends", span.Name())
		}
	}
}
