//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
)

// driverNotLoaded is NVML_ERROR_DRIVER_NOT_LOADED.
const driverNotLoaded = 9

func TestPodWaitsWhileNVMLFails(t *testing.T) {
	s := begin(t, faulty)
	plugin := s.pluginReady()
	s.start("before-faults", s.share("1Gi"), cuda("main"))
	s.held("before-faults", "1Gi")

	s.fault(simdriver.FailCall("nvmlInit_v2", driverNotLoaded))
	s.nodeTold("DiscoveryFailed", "initialise NVML")
	s.notReady("initialise NVML")
	s.start("waits-for-nvml", s.again("gpu"), cuda("main"))
	s.told("waits-for-nvml", "cannot be prepared now", "initialise NVML")
	s.notStarted("waits-for-nvml")
	s.offers(4) // pods hold them

	s.mend()
	s.held("waits-for-nvml", "1Gi")
	s.stillHeld("before-faults", "1Gi")
	s.samePlugin(plugin)
}

func TestPluginStartsBeforeNVMLWorks(t *testing.T) {
	s := begin(t, late)
	s.fault(simdriver.FailCall("nvmlInit_v2", driverNotLoaded))
	plugin := s.replacePlugin()
	s.nodeTold("DiscoveryFailed", "initialise NVML")
	s.notReady("initialise NVML")
	s.offers(0)
	s.start("waits-for-driver", s.share("1Gi"), cuda("main"))
	_, err := s.Unschedulable(t.Context(), s.namespace, "waits-for-driver")
	s.must(err)

	s.mend()
	s.held("waits-for-driver", "1Gi")
	s.offers(4)
	s.samePlugin(plugin)
}

// A driver container mounts its root when it has built the driver, which may be long after the plugin's start.
func TestDriverRootAppearsLate(t *testing.T) {
	s := begin(t, late)
	const kept = "/run/kept-driver"
	// All containers mount the simulated hardware from the root, so that must be there.
	s.onNode("mkdir -p %[1]s && mount --bind %[2]s %[1]s && umount %[2]s && mkdir -p %[2]s/run/nvidia-sim", kept, scenario.DriverRoot)
	appear := func() {
		t.Helper()
		s.onNode("mountpoint -q %[2]s || mount --bind %[1]s %[2]s", kept, scenario.DriverRoot)
	}
	t.Cleanup(func() {
		_, _ = s.OnNode(context.Background(), s.node, "sh", "-c", fmt.Sprintf("mountpoint -q %[2]s || mount --bind %[1]s %[2]s; umount %[1]s", kept, scenario.DriverRoot))
	})
	plugin := s.replacePlugin()
	s.nodeTold("DiscoveryFailed", "find libnvidia-ml.so.1 under driver root "+scenario.DriverRoot)
	s.notReady("find libnvidia-ml.so.1 under driver root " + scenario.DriverRoot)
	s.offers(0)
	s.start("waits-for-root", s.share("1Gi"), cuda("main"))
	_, err := s.Unschedulable(t.Context(), s.namespace, "waits-for-root")
	s.must(err)

	appear()
	s.held("waits-for-root", "1Gi")
	s.offers(4)
	s.samePlugin(plugin)
}

func TestNodeWithoutGPUOffersNone(t *testing.T) {
	s := begin(t, faulty)
	plugin := s.pluginReady()
	s.onNode("cd %s/dev && mkdir away && mv nvidia[0-9] away", scenario.DriverRoot)
	back := fmt.Sprintf("cd %s/dev && mv away/* . && rmdir away", scenario.DriverRoot)
	t.Cleanup(func() { _, _ = s.OnNode(context.Background(), s.node, "sh", "-c", back) })
	s.nodeTold("NoGPU", "NVML found no GPU")
	s.offers(0)
	s.onNode("%s", back)
	s.offers(4)
	s.samePlugin(plugin)
}

func TestLostGPUIsLeft(t *testing.T) {
	s := begin(t, faulty)
	plugin := s.pluginReady()
	claim := s.share("10Gi") // a T4 has one such share
	s.start("victim", claim, cuda("main"))
	victim := s.held("victim", "10Gi")[0].GPUs()[0]
	s.start("neighbour", claim, cuda("main"))
	s.held("neighbour", "10Gi")

	driver, err := s.Driver(s.node)
	s.must(err)
	ledger, err := driver.Ledger()
	s.must(err)
	s.fault(simdriver.LoseGPU(slices.IndexFunc(ledger.GPUs, func(gpu simdriver.LedgerGPU) bool { return gpu.UUID == victim })))
	s.nodeTold("GPULost", victim, "stays published as unhealthy")
	s.tainted(victim, "lost:NoExecute")
	s.evicted("victim")
	s.stillHeld("neighbour", "10Gi")
	s.start("newcomer", claim, cuda("main"))
	if saw := s.held("newcomer", "10Gi")[0].GPUs(); slices.Contains(saw, victim) {
		t.Errorf("a new pod is on the lost GPU")
	}

	last := len(ledger.GPUs) - 1 // no pod has it
	s.fault(simdriver.LoseGPU(last))
	s.nodeTold("GPULost", ledger.GPUs[last].UUID, "is withdrawn") // in an Event of its own
	s.offers(3)

	s.mend()
	s.offers(4)
	s.tainted(victim)
	s.samePlugin(plugin)
}

// fault makes the driver of the spec's node fail until mend, or until the spec ends.
func (s *spec) fault(faults ...simdriver.Fault) {
	s.Helper()
	driver, err := s.Driver(s.node)
	s.must(err)
	s.Cleanup(s.mend)
	s.must(driver.Fault(faults...))
}

func (s *spec) mend() {
	s.Helper()
	driver, err := s.Driver(s.node)
	s.must(err)
	s.must(driver.ClearFaults())
}

// offers waits until the spec's node publishes a number of GPUs.
func (s *spec) offers(count int) {
	s.Helper()
	s.eventually(fmt.Sprintf("node %s offers %d GPUs", s.node, count), func(ctx context.Context) (bool, error) {
		devices, err := s.devices(ctx, s.node)
		devices = slices.DeleteFunc(devices, func(d resourceapi.Device) bool {
			return *d.Attributes[v1alpha1.AttributeType].StringValue != v1alpha1.TypeGPU
		})
		if err == nil && len(devices) != count {
			err = fmt.Errorf("it offers %d", len(devices))
		}
		return err == nil, err
	})
}

// notReady waits until the plugin says that it is not ready and why.
func (s *spec) notReady(reason string) {
	s.Helper()
	s.eventually("the plugin is not ready because of "+reason, func(ctx context.Context) (bool, error) {
		plugin, err := s.Plugin(ctx, s.node)
		if err != nil || scenario.Ready(plugin) {
			return false, err
		}
		// Not ready is an error to the client; the reason is in the body.
		body, _ := s.Client.CoreV1().Pods(release.Namespace).ProxyGet("http", plugin.Name, "8080", "readyz", nil).DoRaw(ctx)
		if !strings.Contains(string(body), reason) {
			return false, fmt.Errorf("readyz says %s", body)
		}
		return true, nil
	})
}

// replacePlugin deletes the plugin's pod on the spec's node and waits until the process of a new one runs.
func (s *spec) replacePlugin() corev1.Pod {
	s.Helper()
	before, err := s.Plugin(s.Context(), s.node)
	s.must(err)
	s.must(s.Client.CoreV1().Pods(release.Namespace).Delete(s.Context(), before.Name, metav1.DeleteOptions{}))
	var now corev1.Pod
	s.eventually("a new plugin runs", func(ctx context.Context) (_ bool, err error) {
		now, err = s.Plugin(ctx, s.node)
		return err == nil && now.UID != before.UID && len(now.Status.ContainerStatuses) == 1 && now.Status.ContainerStatuses[0].State.Running != nil, err
	})
	return now
}

// samePlugin checks that the plugin went through the spec's trouble without a restart.
func (s *spec) samePlugin(before corev1.Pod) {
	s.Helper()
	now := s.pluginReady()
	if now.UID != before.UID || scenario.Restarts(now) != scenario.Restarts(before) {
		s.Errorf("the plugin was restarted: %s with %d restarts before, %s with %d now",
			before.Name, scenario.Restarts(before), now.Name, scenario.Restarts(now))
	}
}
