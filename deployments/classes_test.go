package deployments

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// published is a GPU as the scheduler's CEL sees it once the driver has published it.
func published(d gpu.Device) cel.Device {
	device := inventory.Device(d)
	return cel.Device{
		Driver:                   v1alpha1.DriverName,
		AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes:               device.Attributes,
		Capacity:                 device.Capacity,
	}
}

var (
	hopper = gpu.Device{
		UUID: "GPU-00000000-0000-0000-0000-000000000001", ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia",
		Architecture: "Hopper", ComputeCapability: "9.0", DriverVersion: "580.95.05", CUDADriverVersion: "13.0",
		MemoryTotal: 81559 << 20, MemoryReserved: 551 << 20,
	}
	turing = gpu.Device{
		UUID: "GPU-00000000-0000-0000-0000-000000000002", ProductName: "Tesla T4", Brand: "Tesla",
		Architecture: "Turing", ComputeCapability: "7.5", DriverVersion: "535.104.05", CUDADriverVersion: "12.2",
		MemoryTotal: 15360 << 20, MemoryReserved: 443 << 20,
	}
	bare = gpu.Device{MemoryTotal: 16 << 30} // a machine that tells nothing else
)

func devices() map[string]cel.Device {
	foreign := published(hopper)
	foreign.Driver = "gpu.nvidia.com"
	// A type that this driver does not publish yet, and a GPU that is not shared.
	partition := published(hopper)
	partition.Attributes = maps.Clone(partition.Attributes)
	partition.Attributes[v1alpha1.AttributeType] = resourceapi.DeviceAttribute{StringValue: ptr.To("mig")}
	exclusive := published(hopper)
	exclusive.AllowMultipleAllocations = nil
	return map[string]cel.Device{
		"hopper": published(hopper), "turing": published(turing), "bare": published(bare),
		"exclusive": exclusive, "foreign": foreign, "foreign, no attributes": {Driver: "nic.example.com"}, "partition": partition,
	}
}

// matching names the devices that all selectors match. One that fails to compile, that costs more than the API server
// lets pass, or that errs on a device, which would stop the scheduling of a pod, fails the test.
func matching(t *testing.T, selectors []resourceapi.DeviceSelector) []string {
	t.Helper()
	// The features that are on by default in Kubernetes 1.36 and 1.37.
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	names := slices.Sorted(maps.Keys(devices()))
	for _, selector := range selectors {
		expression := selector.CEL.Expression
		compiled := compiler.CompileCELExpression(expression, cel.Options{})
		if compiled.Error != nil {
			t.Fatalf("compile %s: %v", expression, compiled.Error)
		}
		if compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			t.Errorf("%s may cost %d, the limit is %d", expression, compiled.MaxCost, resourceapi.CELSelectorExpressionMaxCost)
		}
		// As the scheduler does: a device that one selector left out is not shown to the next.
		names = slices.DeleteFunc(names, func(name string) bool {
			matches, _, err := compiled.DeviceMatches(t.Context(), devices()[name])
			if err != nil {
				t.Errorf("device %q: evaluate %s: %v", name, expression, err)
			}
			return !matches
		})
	}
	return names
}

func TestClassesSelectTheirDevices(t *testing.T) {
	want := map[string]map[string][]string{
		"default": {
			"gpu.aliquot.dev":       {"bare", "exclusive", "hopper", "turing"},
			"share.gpu.aliquot.dev": {"bare", "hopper", "turing"},
		},
		"full": {
			"gpu.aliquot.dev":    {"bare", "exclusive", "hopper", "turing"},
			"hopper.example.com": {"hopper"},
		},
	}
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			got := map[string][]string{}
			for _, class := range all[*resourceapi.DeviceClass](decode(t, mustTemplate(t, r.args...))) {
				got[class.Name] = matching(t, class.Spec.Selectors)
			}
			if diff := cmp.Diff(want[r.name], got); diff != "" {
				t.Errorf("devices of classes (-want +got):\n%s", diff)
			}
		})
	}
}

// The examples decode strictly, ask for classes and capacities that exist, and their pods find their claims.
func TestExamples(t *testing.T) {
	classes := map[string][]resourceapi.DeviceSelector{}
	for _, class := range all[*resourceapi.DeviceClass](decode(t, mustTemplate(t))) {
		classes[class.Name] = class.Spec.Selectors
	}
	shared := []string{"bare", "hopper", "turing"}
	want := map[string][]string{ // the devices that each request can be met by
		"share.yaml gpu":           shared,
		"select-by-model.yaml gpu": {"hopper"},
		"two-shares.yaml server":   shared,
		"two-shares.yaml embedder": shared,
	}
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	got := map[string][]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects := decode(t, string(data))
		requests := map[string][]string{} // of each template
		for _, template := range all[*resourceapi.ResourceClaimTemplate](objects) {
			for _, request := range template.Spec.Spec.Devices.Requests {
				requests[template.Name] = append(requests[template.Name], request.Name)
				selectors, ok := classes[request.Exactly.DeviceClassName]
				if !ok {
					t.Errorf("%s: no class %q by default", file, request.Exactly.DeviceClassName)
				}
				got[filepath.Base(file)+" "+request.Name] = matching(t, slices.Concat(selectors, request.Exactly.Selectors))
				for name := range request.Exactly.Capacity.Requests {
					if _, ok := inventory.Device(hopper).Capacity[name]; !ok {
						t.Errorf("%s: no device has capacity %q", file, name)
					}
				}
			}
		}
		for _, pod := range all[*corev1.Pod](objects) {
			checkClaims(t, file, pod, requests)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices of requests (-want +got):\n%s", diff)
	}
}

// checkClaims follows the names from a container to its pod's claim to the template and its request.
func checkClaims(t *testing.T, file string, pod *corev1.Pod, requests map[string][]string) {
	t.Helper()
	templates := map[string]string{}
	for _, claim := range pod.Spec.ResourceClaims {
		templates[claim.Name] = *claim.ResourceClaimTemplateName
		if requests[*claim.ResourceClaimTemplateName] == nil {
			t.Errorf("%s: pod names template %q, which is not there", file, *claim.ResourceClaimTemplateName)
		}
	}
	for _, container := range pod.Spec.Containers {
		if len(container.Resources.Claims) == 0 && len(container.Resources.Limits) == 0 {
			t.Errorf("%s: container %q asks for no GPU", file, container.Name)
		}
		for _, claim := range container.Resources.Claims {
			known := requests[templates[claim.Name]]
			if known == nil || claim.Request != "" && !slices.Contains(known, claim.Request) {
				t.Errorf("%s: container %q names claim %q, request %q, which is not there", file, container.Name, claim.Name, claim.Request)
			}
		}
	}
}
