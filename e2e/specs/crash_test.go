//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aliquot.dev/aliquot/e2e/scenario"
)

func TestSharesOutliveTheKilledPlugin(t *testing.T) {
	s := begin(t, crashing)
	claim := s.share("2Gi")
	s.start("before", claim, cuda("main"))
	s.held("before", "2Gi")
	s.killPlugin()
	s.stillHeld("before", "2Gi")
	s.start("after", claim, cuda("main"))
	s.held("after", "2Gi")
	s.stillHeld("before", "2Gi")
}

// killPlugin kills the plugin on the spec's node and waits until it serves again.
func (s *spec) killPlugin() {
	s.Helper()
	before, err := s.Plugin(s.Context(), s.node)
	s.must(err)
	s.must(s.KillPlugin(s.Context(), s.node))
	s.eventually("the plugin serves again", func(ctx context.Context) (bool, error) {
		now, err := s.Plugin(ctx, s.node)
		return scenario.Restarts(now) > scenario.Restarts(before) && scenario.Ready(now), err
	})
}

// Wherever in a prepare or unprepare the plugin dies, every pod comes to its share and nothing else is left.
func TestPluginKilledAtAnyMomentLosesNothing(t *testing.T) {
	s := begin(t, crashing)
	const rounds = 10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	claim := s.share("513Mi")
	name := func(round int) string { return fmt.Sprintf("round-%d", round) }
	var pid, killed string // one that was killed may take a while to be gone
	for round := range rounds {
		s.start(name(round), claim, cuda("main"))
		if round >= 3 {
			_, err := s.Kubectl(t.Context(), "delete", "pod", "--namespace", s.namespace, name(round-3), "--wait=false")
			s.must(err)
		}
		s.eventually("the plugin runs", func(ctx context.Context) (bool, error) {
			output, err := s.OnNode(ctx, s.node, "sh", "-c", "pidof aliquot-kubelet-plugin || true")
			pid = strings.TrimSpace(output)
			return pid != "" && pid != killed, err
		})
		// A moment within what it takes to place, prepare and start a pod; no result depends on how long it is.
		<-time.After(time.Duration(random.IntN(1500)) * time.Millisecond)
		s.must(s.KillPlugin(t.Context(), s.node))
		killed = pid
	}
	for round := rounds - 3; round < rounds; round++ {
		s.held(name(round), "513Mi")
	}
}

// Without a plugin a pod cannot end in good order, so an admin forces it. The kubelet and the plugin clear up as soon as
// there is a plugin again.
func TestPodDeletedWithoutPluginLeavesNothing(t *testing.T) {
	s := begin(t, crashing)
	s.start("orphan", s.share("1Gi"), cuda("main"))
	s.held("orphan", "1Gi")
	label := func(change string) {
		t.Helper()
		_, err := s.Kubectl(t.Context(), "label", "node", s.node, change)
		s.must(err)
	}
	t.Cleanup(func() {
		_, _ = s.Kubectl(context.Background(), "label", "node", s.node, "nvidia.com/gpu.present=true", "--overwrite")
	})
	label("nvidia.com/gpu.present-")
	s.eventually("the node has no plugin", func(ctx context.Context) (bool, error) {
		output, err := s.OnNode(ctx, s.node, "sh", "-c", "pidof aliquot-kubelet-plugin || true")
		return output == "", err
	})
	s.stillHeld("orphan", "1Gi")
	_, err := s.Kubectl(t.Context(), "delete", "pod", "--namespace", s.namespace, "orphan", "--force", "--grace-period=0")
	s.must(err)
	label("nvidia.com/gpu.present=true")
	s.eventually("nothing is left of the pod's claim", func(ctx context.Context) (bool, error) {
		state, err := s.State(s.node)
		return len(state.Records)+len(state.Specs)+len(state.Shares) == 0, err
	})
	s.pluginReady()
}

// pluginReady waits until the plugin on the spec's node serves, and returns its pod.
func (s *spec) pluginReady() corev1.Pod {
	s.Helper()
	var plugin corev1.Pod
	s.eventually("the plugin of node "+s.node+" is ready", func(ctx context.Context) (_ bool, err error) {
		plugin, err = s.Plugin(ctx, s.node)
		return err == nil && scenario.Ready(plugin), err
	})
	return plugin
}
