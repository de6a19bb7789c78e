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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/simdriver"
)

func TestUnhealthyGPUIsTaintedUntilItIsWell(t *testing.T) {
	s := begin(t, faulty)
	s.pluginReady()
	stays := claimSpec([]request{{name: "gpu", memory: "3Gi"}})
	stays.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{
		// Without the effect, which the API says is any, the pod would be evicted.
		Key: v1alpha1.TaintUnhealthy, Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute,
	}}
	_, err := s.Client.ResourceV1().ResourceClaims(s.namespace).Create(t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "stays"}, Spec: stays,
	}, metav1.CreateOptions{})
	s.must(err)
	s.start("stays", corev1.PodResourceClaim{Name: "stays", ResourceClaimName: ptr.To("stays")}, cuda("main"))
	ill := s.held("stays", "3Gi")[0].GPUs()[0]
	s.start("goes", s.share("2Gi"), cuda("main"))
	if saw := s.held("goes", "2Gi")[0].GPUs(); !slices.Contains(saw, ill) {
		t.Fatalf("the pods are on GPUs %s and %s", ill, saw)
	}
	s.health("stays", corev1.ResourceHealthStatusHealthy, "")

	driver, err := s.Driver(s.node)
	s.must(err)
	ledger, err := driver.Ledger()
	s.must(err)
	index := slices.IndexFunc(ledger.GPUs, func(gpu simdriver.LedgerGPU) bool { return gpu.UUID == ill })
	// An application that fails twice the same way is told of once, and counted.
	s.fault(simdriver.XID(index, 13), simdriver.XID(index, 13), simdriver.XID(index, 79), simdriver.Recovery(index, 2))
	s.nodeTold("GPUFault", ill, "XID 13")
	s.nodeTold("GPUUnhealthy", ill, "XID 79")
	s.tainted(ill, "xid-79:NoExecute")
	s.health("stays", corev1.ResourceHealthStatusUnhealthy, "XID 79")
	s.evicted("goes")
	s.start("elsewhere", s.again("gpu"), cuda("main"))
	if saw := s.held("elsewhere", "2Gi")[0].GPUs(); slices.Contains(saw, ill) {
		t.Errorf("a new pod is on the unhealthy GPU")
	}
	s.replacePlugin()
	s.pluginReady()
	s.tainted(ill, "xid-79:NoExecute")
	s.health("stays", corev1.ResourceHealthStatusUnhealthy, "XID 79")

	s.mend()
	s.nodeTold("GPUHealthy", ill, "XID 79")
	s.tainted(ill)
	s.health("stays", corev1.ResourceHealthStatusHealthy, "")
	s.stillHeld("stays", "3Gi")
}

// tainted waits until the devices of a GPU have just the given taints, "value:effect".
func (s *spec) tainted(uuid string, want ...string) {
	s.Helper()
	s.eventually(fmt.Sprintf("GPU %s has the taints %q", uuid, want), func(ctx context.Context) (bool, error) {
		devices, err := s.devices(ctx, s.node)
		if err != nil {
			return false, err
		}
		err = fmt.Errorf("it is not published")
		for _, device := range devices {
			if ptr.Deref(device.Attributes[v1alpha1.AttributeUUID].StringValue, "") != uuid {
				continue
			}
			var got []string
			for _, taint := range device.Taints {
				got = append(got, taint.Value+":"+string(taint.Effect))
			}
			if slices.Equal(got, want) {
				return true, nil
			}
			err = fmt.Errorf("it has %q", got)
		}
		return false, err
	})
}

// health waits until the status of a pod says how its device fares, and why.
func (s *spec) health(name string, want corev1.ResourceHealthStatus, message string) {
	s.Helper()
	s.eventually(fmt.Sprintf("pod %s has a device that is %s", name, want), func(ctx context.Context) (bool, error) {
		pod, err := s.pod(ctx, name)
		if err != nil {
			return false, err
		}
		var all []corev1.ResourceHealth
		for _, container := range pod.Status.ContainerStatuses {
			for _, status := range container.AllocatedResourcesStatus {
				all = append(all, status.Resources...)
			}
		}
		if len(all) != 1 || all[0].Health != want || !strings.Contains(ptr.Deref(all[0].Message, ""), message) {
			return false, fmt.Errorf("its status says %+v", all)
		}
		return true, nil
	})
}

// evicted waits until a pod is gone, or has failed, although nobody removed it.
func (s *spec) evicted(name string) {
	s.Helper()
	s.eventually("pod "+name+" is evicted", func(ctx context.Context) (bool, error) {
		pod, err := s.pod(ctx, name)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		return false, fmt.Errorf("its phase is %s", pod.Status.Phase)
	})
}
