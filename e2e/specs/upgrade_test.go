//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
)

// While plugins replace each other, to and fro, pods come and go and none is refused, running ones keep what they have,
// and the node's GPUs stay published.
func TestUpgradeAndRollbackLeaveNoGap(t *testing.T) {
	s := alone(t, sharing)
	s.pluginReady()
	s.start("lasting", s.share("2Gi"), cuda("main"))
	s.held("lasting", "2Gi")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := &gap{spec: s, claim: s.template("short", request{name: "gpu", memory: "513Mi"})}
	g.watchSlices(ctx)
	g.watchPlugins(ctx)
	churn, enough := context.WithCancel(ctx)
	for w := range 2 {
		g.churning.Go(func() { g.churn(ctx, churn, w) })
	}

	s.must(release.Upgrade(t.Context(), s.Cluster, append([]string{"--set-string", "logVerbosity=4"}, settings...)...))
	s.pluginReady()
	s.stillHeld("lasting", "2Gi")
	_, err := s.Helm(t.Context(), "rollback", release.Name, "--namespace", release.Namespace, "--wait", "--timeout", "2m")
	s.must(err)
	s.pluginReady()

	enough()
	g.churning.Wait()
	cancel()
	g.group.Wait()
	s.stillHeld("lasting", "2Gi")
	g.judge()
}

// gap looks for one in what the plugin does.
type gap struct {
	*spec
	claim    corev1.PodResourceClaim
	group    sync.WaitGroup
	churning sync.WaitGroup

	mu     sync.Mutex // guards what follows
	pods   int        // that had what they asked for
	most   int        // plugins that served at once
	faults []string
}

func (g *gap) fault(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = append(g.faults, fmt.Sprintf(format, args...))
}

func (g *gap) judge() {
	g.Helper()
	if len(g.faults) > 0 {
		g.Errorf("faults:\n%s", strings.Join(g.faults, "\n"))
	}
	if g.most < 2 {
		g.Error("the plugins were never there at once")
	}
	if g.pods < 4 {
		g.Errorf("only %d pods ran while the plugins were replaced", g.pods)
	}
	g.Logf("%d pods ran, up to %d plugins at once", g.pods, g.most)
}

// churn makes pods with a share and removes them, one after the other, until it is enough.
func (g *gap) churn(ctx, enough context.Context, worker int) {
	pods := g.Client.CoreV1().Pods(g.namespace)
	for n := 0; enough.Err() == nil; n++ {
		name := fmt.Sprintf("short-%d-%d", worker, n)
		container := idle("main")
		container.Resources.Claims = []corev1.ResourceClaim{{Name: g.claim.Name}}
		_, err := pods.Create(ctx, g.podOf(name, []corev1.PodResourceClaim{g.claim}, container), metav1.CreateOptions{})
		if err == nil {
			err = scenario.Eventually(ctx, "pod "+name+" runs", func(ctx context.Context) (bool, error) {
				pod, err := g.pod(ctx, name)
				return err == nil && scenario.Ready(*pod), err
			})
		}
		if err != nil {
			g.fault("%v\n%s", err, g.Explain(ctx, g.namespace, name))
			return
		}
		g.mu.Lock()
		g.pods++
		g.mu.Unlock()
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			g.fault("delete pod %s: %v", name, err)
		}
	}
}

// watchSlices wants each slice of the node to stay, and to have devices or counters.
func (g *gap) watchSlices(ctx context.Context) {
	g.Helper()
	events, err := g.Client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + g.node})
	g.must(err)
	g.group.Go(func() {
		for event := range events.ResultChan() {
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if !ok {
				continue
			}
			if event.Type == apiwatch.Deleted || len(slice.Spec.Devices)+len(slice.Spec.SharedCounters) == 0 {
				g.fault("slice %s of generation %d: %s, with %d devices", slice.Name, slice.Spec.Pool.Generation, event.Type, len(slice.Spec.Devices))
			}
		}
	})
}

// watchPlugins counts the plugins of the node that are ready at once.
func (g *gap) watchPlugins(ctx context.Context) {
	g.Helper()
	events, err := g.Client.CoreV1().Pods(release.Namespace).Watch(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=kubelet-plugin", FieldSelector: "spec.nodeName=" + g.node,
	})
	g.must(err)
	g.group.Go(func() {
		ready := map[string]bool{}
		for event := range events.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			delete(ready, pod.Name)
			if event.Type != apiwatch.Deleted && scenario.Ready(*pod) {
				ready[pod.Name] = true
			}
			g.mu.Lock()
			g.most = max(g.most, len(ready))
			g.mu.Unlock()
		}
	})
}
