//go:build e2e

package specs_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/e2e/cluster"
)

// tracesPort is OTLP's over gRPC.
const tracesPort = 4317

// spans is the collector of every node's traces.
var spans = &spanStore{nodes: map[string]map[string]span{}}

// spanStore keeps the spans of the claims' life, by node and ID.
type spanStore struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	nodes map[string]map[string]span
}

type span struct{ name, parent, claim string }

// listen serves on all nodes until the program ends. The plugins are there first, and have to try again.
func (s *spanStore) listen(c *cluster.Cluster) error {
	listener, err := c.Listen(tracesPort)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	return nil
}

func (s *spanStore) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range request.ResourceSpans {
		node := attributeOf(of.Resource.Attributes, "k8s.node.name")
		if s.nodes[node] == nil {
			s.nodes[node] = map[string]span{}
		}
		for _, scope := range of.ScopeSpans {
			for _, one := range scope.Spans {
				s.nodes[node][hex.EncodeToString(one.SpanId)] = span{
					name: one.Name, parent: hex.EncodeToString(one.ParentSpanId), claim: attributeOf(one.Attributes, "k8s.resourceclaim.uid"),
				}
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func attributeOf(attributes []*commonpb.KeyValue, key string) string {
	for _, attribute := range attributes {
		if attribute.Key == key {
			return attribute.Value.GetStringValue()
		}
	}
	return ""
}

// paths are the spans of a node in and around those of a claim, each as the names from the root to it, sorted.
func (s *spanStore) paths(node, claim string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.nodes[node]
	roots := map[string]bool{}
	for id := range all {
		if all[id].claim == claim {
			roots[s.root(node, id)] = true
		}
	}
	var paths []string
	for id := range all {
		if roots[s.root(node, id)] {
			var names []string
			for at := id; all[at].name != ""; at = all[at].parent {
				names = append(names, all[at].name)
			}
			slices.Reverse(names)
			paths = append(paths, strings.Join(names, "/"))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func (s *spanStore) root(node, id string) string {
	for all := s.nodes[node]; all[all[id].parent].name != ""; {
		id = all[id].parent
	}
	return id
}

// TestATraceTellsWhatAPodWaitedFor: from the kubelet's call to each file.
func TestATraceTellsWhatAPodWaitedFor(t *testing.T) {
	s := begin(t, sharing)
	s.start("pod", s.claim("gpu", request{name: "gpu", memory: "1Gi"}), cuda("main"))
	s.held("pod", "1Gi")
	claim, err := s.Client.ResourceV1().ResourceClaims(s.namespace).Get(t.Context(), "gpu", metav1.GetOptions{})
	s.must(err)
	s.remove("pod")
	want := []string{
		"NodePrepareResources/HTTP GET", // of the claim
		"NodePrepareResources/Prepare/MakeReady",
		"NodePrepareResources/Prepare/WriteRecord",
		"NodePrepareResources/Prepare/WriteShares",
		"NodePrepareResources/Prepare/WriteSpec",
		"NodeUnprepareResources/Unprepare/RemoveSpec",
		"NodeUnprepareResources/Unprepare/RemoveRecord",
	}
	s.eventually("the traces of the claim are complete", func(context.Context) (bool, error) {
		got := spans.paths(s.node, string(claim.UID))
		for _, path := range want {
			if !slices.Contains(got, path) {
				return false, fmt.Errorf("no %s in\n%s", path, strings.Join(got, "\n"))
			}
		}
		return true, nil
	})
}
