//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// What a node publishes went through NVML, the plugin and the API server's validation; it must be what the inventory
// makes of the same GPUs.
func TestEveryNodeOffersItsGPUs(t *testing.T) {
	s := watch(t, sharing)
	for _, node := range nodes {
		want := s.described(node)
		s.eventually("node "+node.Name+" offers its GPUs", func(ctx context.Context) (bool, error) {
			got, err := s.devices(ctx, node.Name)
			return len(got) == len(want), err
		})
		got, err := s.devices(t.Context(), node.Name)
		s.must(err)
		for _, devices := range [][]resourceapi.Device{got, want} {
			slices.SortFunc(devices, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
		}
		for i := range got {
			withoutPlace(got[i])
			withoutPlace(want[i])
			if !equality.Semantic.DeepEqual(got[i], want[i]) {
				t.Errorf("device of node %s (-want +got):\n%s", node.Name, cmp.Diff(want[i], got[i]))
			}
		}
	}
}

// described are the devices of the GPUs that a node was given.
func (s *spec) described(node scenario.Node) []resourceapi.Device {
	s.Helper()
	gpus, err := gpu.FromFile(filepath.Join("../../internal/gpu/testdata", node.Hardware+".yaml"))
	s.must(err)
	driver, err := s.Driver(node.Name)
	s.must(err)
	ledger, err := driver.Ledger()
	s.must(err)
	var devices []resourceapi.Device
	for i, gpu := range gpus {
		gpu.UUID = ledger.GPUs[i].UUID // each node has its own
		devices = append(devices, inventory.Devices(gpu)...)
	}
	return devices
}

// withoutPlace removes what the plugin reads from the machine's sysfs, which is not simulated.
func withoutPlace(device resourceapi.Device) {
	delete(device.Attributes, deviceattribute.StandardDeviceAttributePCIeRoot)
	delete(device.Attributes, deviceattribute.StandardDeviceAttributeNUMANode)
}

// Every file in deployments/examples, and the one that helm shows after an install, runs as it stands but for the image.
func TestExamplesRun(t *testing.T) {
	s := alone(t, sharing)
	files, err := filepath.Glob("../../deployments/examples/*.yaml")
	s.must(err)
	if len(files) == 0 {
		t.Fatal("there are no examples")
	}
	for _, file := range files {
		manifest, err := os.ReadFile(file)
		s.must(err)
		s.apply(string(manifest))
	}
	notes, err := s.Helm(t.Context(), "get", "notes", "aliquot", "--namespace", "aliquot-system")
	s.must(err)
	_, example, _ := strings.Cut(notes, "<<'YAML'\n")
	example, _, found := strings.Cut(example, "YAML\n")
	if !found {
		t.Fatalf("there is no example in helm's notes:\n%s", notes)
	}
	s.apply(strings.ReplaceAll("\n"+example, "\n   ", "\n")) // it is indented in the notes

	pods := s.Client.CoreV1().Pods(s.namespace)
	s.eventually("the examples' pods have run", func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		running := slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool {
			return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
		})
		return !running, err
	})
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	s.must(err)
	if len(list.Items) < len(files) {
		t.Errorf("%d examples made %d pods", len(files), len(list.Items))
	}
	for _, pod := range list.Items {
		if pod.Status.Phase != corev1.PodSucceeded {
			t.Errorf("pod %s: %s", pod.Name, s.Explain(t.Context(), s.namespace, pod.Name))
		}
	}
}

// apply applies an example with an image that the nodes have.
func (s *spec) apply(manifest string) {
	s.Helper()
	const image = "image: ubuntu:24.04"
	before, _, found := strings.Cut(manifest, image)
	if !found {
		s.Fatalf("the example's image is not the one known here:\n%s", manifest)
	}
	indent := strings.Repeat(" ", len(before)-strings.LastIndexByte(before, '\n')-1)
	manifest = strings.ReplaceAll(manifest, image, "image: "+scenario.WorkloadImage+"\n"+indent+"imagePullPolicy: Never")
	cmd := s.Command(s.Context(), "kubectl", "apply", "--namespace", s.namespace, "--filename", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if output, err := cmd.CombinedOutput(); err != nil {
		s.Errorf("apply: %v: %s\n%s", err, output, manifest)
	}
}

// The API server itself takes what is published of every machine that is known, in and out of MIG mode.
func TestAPIServerTakesSlicesOfEveryMachine(t *testing.T) {
	s := watch(t, sharing)
	files, err := filepath.Glob("../../internal/gpu/testdata/*.yaml")
	s.must(err)
	if len(files) == 0 {
		t.Fatal("no machine is known")
	}
	for _, file := range files {
		gpus, err := gpu.FromFile(file)
		s.must(err)
		for _, enabled := range []bool{false, true} {
			for _, d := range gpus {
				if d.MIG != nil {
					d.MIG.Enabled = enabled
				}
			}
			pool := inventory.Resources("node", gpus, nil).Pools["node/gpus"]
			for i, slice := range pool.Slices {
				_, err := s.Client.ResourceV1().ResourceSlices().Create(t.Context(), &resourceapi.ResourceSlice{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%d", i)},
					Spec: resourceapi.ResourceSliceSpec{
						Driver: v1alpha1.DriverName, NodeName: ptr.To("node"), Devices: slice.Devices, SharedCounters: slice.SharedCounters,
						Pool: resourceapi.ResourcePool{Name: "node/gpus", Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
					},
				}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err != nil {
					t.Errorf("%s, slice %d: %v", file, i, err)
				}
			}
		}
	}
}
