package driver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// advertise is what the kubelet says of the node in the name of device plugins.
func (s *served) advertise(t *testing.T, capacity, allocatable corev1.ResourceList) {
	t.Helper()
	nodes := s.client.CoreV1().Nodes()
	node, err := nodes.Get(t.Context(), "node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Capacity, node.Status.Allocatable = capacity, allocatable
	if _, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// emptied waits until no slice of the node has a device.
func (s *served) emptied(t *testing.T) {
	t.Helper()
	for {
		list, err := s.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		devices := 0
		for _, slice := range list.Items {
			devices += len(slice.Spec.Devices)
		}
		if devices == 0 {
			return
		}
		select {
		case <-s.slices.ResultChan():
		case <-t.Context().Done():
			t.Fatalf("%d devices are still published", devices)
		}
	}
}

func TestGPUsOfADevicePluginAreNotPublished(t *testing.T) {
	two := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"), "cpu": resource.MustParse("8")}
	none := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0"), "cpu": resource.MustParse("8")}
	s := serve(t)
	s.register(t)
	s.published(t, 8)

	s.advertise(t, two, two)
	s.emptied(t)
	if err := s.driver.Ready(); err == nil || !strings.Contains(err.Error(), "a device plugin offers nvidia.com/gpu of this node") {
		t.Errorf("ready: %v", err)
	}
	if event := <-s.events.Events; !strings.Contains(event, "DevicePluginFound") || !strings.Contains(event, "besideDevicePlugin") {
		t.Errorf("Event: %s", event)
	}
	s.advertise(t, none, none)
	s.published(t, 8)
	if err := s.driver.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	// The plugin went away and may come back: its pods run on.
	s.advertise(t, two, none)
	s.emptied(t)
}

func TestNodeThatIsSharedWithADevicePluginOnPurpose(t *testing.T) {
	s := serve(t)
	if err := s.stop(nil); err != nil {
		t.Fatal(err)
	}
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	s.advertise(t, gpus, gpus)
	s.config.BesideDevicePlugin = true
	s.start(t)
	s.register(t)
	s.published(t, 8)
}

func TestDevicePluginResources(t *testing.T) {
	one := resource.MustParse("1")
	for _, test := range []struct {
		capacity corev1.ResourceList
		want     string
	}{
		{corev1.ResourceList{"cpu": one, "amd.com/gpu": one, "nvidia.com/gpumem": one}, ""},
		{corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}, ""},
		{corev1.ResourceList{"nvidia.com/mig-1g.10gb": one, "nvidia.com/gpu": one}, "nvidia.com/gpu, nvidia.com/mig-1g.10gb"},
		{corev1.ResourceList{"nvidia.com/gpu.shared": one}, "nvidia.com/gpu.shared"},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{Capacity: test.capacity}}
		if got := DevicePluginResource(node); got != test.want {
			t.Errorf("of %v: %q, want %q", test.capacity, got, test.want)
		}
	}
}
