//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"aliquot.dev/aliquot/e2e/scenario"
)

// The demo shows it for cuMemAlloc.
func TestEveryAllocationAPIIsHeldToTheShare(t *testing.T) {
	s := begin(t, sharing)
	quotas := []string{"1025Mi", "1027Mi", "1029Mi", "1031Mi"}
	var requests []request
	var containers []corev1.Container
	for i, api := range []string{"async", "vmm", "managed", "pitch"} {
		requests = append(requests, request{name: api, memory: quotas[i], cores: "10"})
		c := cuda(api, "--api", api)
		c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpus", Request: api}}
		containers = append(containers, c)
	}
	s.start("apis", s.template("gpus", requests...), containers...)
	s.held("apis", quotas...)
}

func TestKilledProcessesFreeTheirShareAtOnce(t *testing.T) {
	s := begin(t, sharing)
	s.start("worker", s.share("3Gi"), idle("main"))
	_, err := s.Holding(t.Context(), s.namespace, "worker", 1)
	s.must(err)

	// Two, since the next process takes the place of one of them in the accounts.
	one, oneEnded := s.background("worker", "main", "--bytes", fmt.Sprint(bytesOf("1Gi")))
	two, twoEnded := s.background("worker", "main")
	if got := s.alloc("worker", "main"); got != 0 {
		t.Errorf("beside processes that hold the share, another got %d bytes", got)
	}
	_, err = s.exec("worker", "main", "kill", "-9", fmt.Sprint(one), fmt.Sprint(two))
	s.must(err)
	oneEnded()
	twoEnded()
	if got := s.alloc("worker", "main"); got != reachable("3Gi") {
		t.Errorf("after the processes were killed, the next got %d bytes, want the whole share, %d", got, reachable("3Gi"))
	}
}

// Containers have pid namespaces of their own, so neither sees whether the other's processes live.
func TestKilledContainerFreesTheShareForAnother(t *testing.T) {
	s := begin(t, sharing)
	s.start("pair", s.share("3Gi"), cuda("first"), idle("second"))
	_, err := s.Holding(t.Context(), s.namespace, "pair", 1)
	s.must(err)
	if got := s.alloc("pair", "second"); got != 0 {
		t.Errorf("beside a container that holds the share, the other got %d bytes", got)
	}
	s.killContainer("pair", "first")
	if got := s.alloc("pair", "second"); got != reachable("3Gi") {
		t.Errorf("after the first container was killed, the other got %d bytes, want the whole share, %d", got, reachable("3Gi"))
	}
}

// killContainer kills the first process of a container and waits until it is dead.
func (s *spec) killContainer(name, container string) {
	s.Helper()
	status := func(ctx context.Context) (corev1.ContainerStatus, error) {
		pod, err := s.pod(ctx, name)
		if err != nil {
			return corev1.ContainerStatus{}, err
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name == container {
				return status, nil
			}
		}
		return corev1.ContainerStatus{}, fmt.Errorf("pod %s has no container %s", name, container)
	}
	running, err := status(s.Context())
	s.must(err)
	_, id, _ := strings.Cut(running.ContainerID, "://")
	s.onNode("ctr --namespace k8s.io task kill --signal SIGKILL %s", id)
	s.eventually("container "+container+" has ended", func(ctx context.Context) (bool, error) {
		now, err := status(ctx)
		return now.State.Terminated != nil, err
	})
}

func TestTwoPodsShareOneClaim(t *testing.T) {
	s := begin(t, sharing)
	claim := s.claim("common", request{name: "gpu", memory: "4Gi", cores: "20"})
	s.start("one", claim, cuda("main"))
	first := s.held("one", "4Gi")
	before := s.onNode("stat -c %%i %s/*.json", scenario.RecordsDir)

	s.start("two", claim, cuda("main"))
	second, err := s.Holding(t.Context(), s.namespace, "two", 1)
	s.must(err)
	if first[0].GPUs()[0] != second[0].GPUs()[0] {
		t.Errorf("pods of one claim are on GPUs %s and %s", first[0].GPUs(), second[0].GPUs())
	}
	if got := second[0].Got(); got != 0 {
		t.Errorf("the second pod got %d bytes of a share that the first holds", got)
	}
	// A record that is written again is another file.
	if after := s.onNode("stat -c %%i %s/*.json", scenario.RecordsDir); after != before {
		t.Errorf("records before the second pod: %s, after: %s; want the claim prepared once", before, after)
	}

	s.remove("one")
	if state, err := s.State(s.node); err != nil || len(state.Records) != 1 || len(state.Shares) != 1 {
		t.Errorf("after the first pod the node has %+v (%v), want the claim of the second", state, err)
	}
	if got := s.alloc("two", "main"); got != reachable("4Gi") {
		t.Errorf("after the first pod, the second got %d bytes, want the whole share, %d", got, reachable("4Gi"))
	}
	s.remove("two")
	s.eventually("nothing is left of the claim", func(ctx context.Context) (bool, error) {
		state, err := s.State(s.node)
		return len(state.Records)+len(state.Specs)+len(state.Shares) == 0, err
	})
}
