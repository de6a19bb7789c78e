//go:build e2e

package specs_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
)

func TestSharesOutliveARestartOfTheKubelet(t *testing.T) {
	s := begin(t, booting)
	s.start("before", s.share("1Gi"), cuda("main"))
	s.held("before", "1Gi")
	s.must(s.StopKubelet(t.Context(), s.node))
	s.must(s.StartKubelet(t.Context(), s.node))
	s.start("after", s.again("gpu"), cuda("main"))
	s.held("after", "1Gi")
	s.stillHeld("before", "1Gi")
}

// A reboot empties /run: specs and share files are gone, and the claims are what they were.
func TestPodsComeBackHeldAfterAReboot(t *testing.T) {
	s := begin(t, booting)
	s.restart = corev1.RestartPolicyAlways
	s.start("lasting", s.share("3Gi"), cuda("main"))
	before := s.held("lasting", "3Gi")
	s.must(s.StopNode(t.Context(), s.node))
	s.must(s.StartNode(t.Context(), s.node))
	s.eventually("the pod was started anew", func(ctx context.Context) (bool, error) {
		pod, err := s.pod(ctx, "lasting")
		return err == nil && scenario.Restarts(*pod) == 1 && scenario.Ready(*pod), err
	})
	after, err := s.Holding(t.Context(), s.namespace, "lasting", 1)
	s.must(err)
	if after[0].GPUs()[0] != before[0].GPUs()[0] || after[0].Shown() != bytesOf("3Gi") || after[0].Got() != reachable("3Gi") {
		t.Errorf("before the reboot: %+v, after: %+v", before[0], after[0])
	}
	if got := s.alloc("lasting", "main"); got != 0 {
		t.Errorf("beside the process that holds the share, another got %d bytes", got)
	}
}

func TestUpgradeAndReinstallLeaveRunningPodsAlone(t *testing.T) {
	s := alone(t, sharing)
	plugin := s.pluginReady()
	claim := s.share("2Gi")
	s.start("before", claim, cuda("main"))
	s.held("before", "2Gi")

	if previous, err := release.PreviousChart(t.Context(), t.TempDir()); err != nil {
		t.Logf("no upgrade from the previous commit's chart: %v", err)
	} else {
		s.must(release.UpgradeTo(t.Context(), s.Cluster, previous, settings...))
	}
	s.must(release.Upgrade(t.Context(), s.Cluster, append([]string{"--set-string", "logVerbosity=4"}, settings...)...))
	if now := s.pluginReady(); now.UID == plugin.UID {
		t.Error("the upgrade replaced no plugin")
	}
	s.stillHeld("before", "2Gi")
	s.start("upgraded", claim, cuda("main"))
	s.held("upgraded", "2Gi")

	_, err := s.Helm(t.Context(), "uninstall", release.Name, "--namespace", release.Namespace, "--wait", "--timeout", "2m")
	s.must(err)
	s.stillHeld("before", "2Gi")
	s.must(release.Upgrade(t.Context(), s.Cluster, settings...))
	s.stillHeld("before", "2Gi")
	s.start("reinstalled", claim, cuda("main"))
	s.held("reinstalled", "2Gi")
}
