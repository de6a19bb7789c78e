//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/e2e/scenario"
)

// spec is one test's part of the world: a node and a namespace of its own.
type spec struct {
	*testing.T
	*scenario.World
	node      string
	namespace string
	restart   corev1.RestartPolicy // of its pods; empty is Never
	dumped    bool
}

// taken says which specs may run at once: a spec has its node to itself.
var taken = map[string]*sync.Mutex{}

func init() {
	for _, node := range nodes {
		taken[node.Name] = &sync.Mutex{}
	}
}

// begin makes a spec on one node, beside specs on other nodes. Afterwards its pods are gone and the node is checked.
func begin(t *testing.T, node string) *spec {
	t.Parallel()
	taken[node].Lock()
	t.Cleanup(taken[node].Unlock)
	return watch(t, node).withNamespace()
}

// alone makes a spec that concerns all nodes; no other spec runs beside it. Its pods go to the given node.
func alone(t *testing.T, node string) *spec {
	return watch(t, node).withNamespace()
}

var capital = regexp.MustCompile(`[A-Z]+`)

// watch makes a spec that runs no pods, and no other spec beside it.
func watch(t *testing.T, node string) *spec {
	t.Helper()
	w, err := world()
	if err != nil {
		t.Fatal(err)
	}
	s := &spec{T: t, World: w, node: node}
	t.Cleanup(s.dumpIfFailed)
	return s
}

func (s *spec) withNamespace() *spec {
	s.Helper()
	words := capital.ReplaceAllString(strings.TrimPrefix(s.Name(), "Test"), "-$0")
	name := strings.ToLower(strings.Trim(words, "-"))
	s.namespace = strings.Trim(name[:min(len(name), 60)], "-")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	_, err := s.Client.CoreV1().Namespaces().Create(s.Context(), namespace, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(s.close)
	return s
}

// dumpIfFailed leaves the logs of a failure, once.
func (s *spec) dumpIfFailed() {
	if !s.Failed() || s.dumped {
		return
	}
	s.dumped = true
	dir, err := os.MkdirTemp("", "aliquot-e2e-logs-")
	if err == nil {
		err = s.DumpLogs(context.Background(), dir)
	}
	s.Logf("logs of the cluster: %s (%v)", dir, err)
}

// close removes the spec's pods and checks the node.
func (s *spec) close() {
	s.dumpIfFailed()            // while the pods are there
	ctx := context.Background() // the test's own has ended
	if err := s.removeNamespace(ctx); err != nil {
		s.Error(err)
	}
	if err := s.settled(ctx); err != nil {
		s.Error(err)
	}
}

func (s *spec) removeNamespace(ctx context.Context) error {
	namespaces := s.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, s.namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return scenario.Eventually(ctx, "namespace "+s.namespace+" is gone", func(ctx context.Context) (bool, error) {
		_, err := namespaces.Get(ctx, s.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// must ends the spec when a step of it fails.
func (s *spec) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// eventually ends the spec when a condition does not come true.
func (s *spec) eventually(what string, condition func(context.Context) (bool, error)) {
	s.Helper()
	s.must(scenario.Eventually(s.Context(), what, condition))
}

// onNode runs a shell command on the spec's node.
func (s *spec) onNode(format string, args ...any) string {
	s.Helper()
	output, err := s.OnNode(s.Context(), s.node, "sh", "-c", fmt.Sprintf(format, args...))
	s.must(err)
	return strings.TrimSpace(output)
}
