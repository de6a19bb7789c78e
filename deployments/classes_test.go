package deployments

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// published is a device as the scheduler's CEL sees it once the driver has published it.
func published(device resourceapi.Device) cel.Device {
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

// divided is a GPU that is published as partitions too.
func divided() gpu.Device {
	d := hopper
	d.MIG = &gpu.MIG{Switchable: true, Profiles: []gpu.Profile{
		{Name: "1g.10gb", Slices: 1, Max: 7, MemoryBytes: 9984 << 20, Multiprocessors: 16, Placements: []gpu.Placement{{Start: 6, Size: 1}}},
		{Name: "1g.10gb+me", Slices: 1, Max: 1, MemoryBytes: 9984 << 20, Multiprocessors: 16, OFAEngines: 1, Placements: []gpu.Placement{{Start: 6, Size: 1}}},
		{Name: "3g.40gb", Slices: 3, Max: 2, MemoryBytes: 40448 << 20, Multiprocessors: 60, Placements: []gpu.Placement{{Start: 4, Size: 4}}},
	}}
	return d
}

func devices() map[string]cel.Device {
	foreign := published(inventory.Device(hopper))
	foreign.Driver = "gpu.nvidia.com"
	exclusive := published(inventory.Device(hopper)) // a GPU that is not shared
	exclusive.AllowMultipleAllocations = nil
	all := map[string]cel.Device{
		"hopper": published(inventory.Device(hopper)), "turing": published(inventory.Device(turing)), "bare": published(inventory.Device(bare)),
		"exclusive": exclusive, "foreign": foreign, "foreign, no attributes": {Driver: "nic.example.com"},
	}
	for _, device := range inventory.Devices(divided()) {
		if profile := device.Attributes[v1alpha1.AttributeProfile].StringValue; profile != nil {
			all[*profile] = published(device)
		}
	}
	return all
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

			"mig.gpu.aliquot.dev":            {"1g.10gb", "1g.10gb+me", "3g.40gb"},
			"mig-1g.10gb.gpu.aliquot.dev":    {"1g.10gb"},
			"mig-1g.10gb.me.gpu.aliquot.dev": {"1g.10gb+me"},
			"mig-3g.40gb.gpu.aliquot.dev":    {"3g.40gb"},
		},
		"full": {
			"gpu.aliquot.dev":    {"bare", "exclusive", "hopper", "turing"},
			"hopper.example.com": {"hopper"},

			"mig-1g.10gb.me.gpu.aliquot.dev": {"1g.10gb+me"},
		},
	}
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			got := map[string][]string{}
			for _, class := range all[*resourceapi.DeviceClass](decode(t, mustTemplate(t, r.args...))) {
				if names := matching(t, class.Spec.Selectors); len(names) > 0 { // most profiles are of other GPUs
					got[class.Name] = names
				}
			}
			if diff := cmp.Diff(want[r.name], got); diff != "" {
				t.Errorf("devices of classes (-want +got):\n%s", diff)
			}
		})
	}
}

// Every profile of the GPUs that are known has a class by default.
func TestEveryKnownProfileHasAClass(t *testing.T) {
	classes := map[string]string{}
	for _, class := range all[*resourceapi.DeviceClass](decode(t, mustTemplate(t))) {
		classes[class.Name] = ptr.Deref(class.Spec.ExtendedResourceName, "")
	}
	files, err := filepath.Glob("../internal/gpu/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("machines: %v, %v", files, err)
	}
	for _, file := range files {
		gpus, err := gpu.FromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range gpus {
			for _, profile := range ptr.Deref(d.MIG, gpu.MIG{}).Profiles {
				name := "mig-" + strings.ReplaceAll(profile.Name, "+", ".")
				if classes[name+".gpu.aliquot.dev"] != "nvidia.com/"+name {
					t.Errorf("profile %s of a %s has no class with the extended resource nvidia.com/%s", profile.Name, d.ProductName, name)
				}
			}
		}
	}
}

// The examples decode strictly, ask for classes and capacities that exist, and their pods find their claims.
func TestExamples(t *testing.T) {
	classes, resources := map[string][]resourceapi.DeviceSelector{}, map[corev1.ResourceName]bool{}
	for _, class := range all[*resourceapi.DeviceClass](decode(t, mustTemplate(t))) {
		classes[class.Name] = class.Spec.Selectors
		resources[corev1.ResourceName(ptr.Deref(class.Spec.ExtendedResourceName, ""))] = true
	}
	shared := []string{"bare", "hopper", "turing"}
	want := map[string][]string{ // the devices that each request can be met by
		"share.yaml gpu":                        shared,
		"select-by-model.yaml gpu":              {"hopper"},
		"two-shares.yaml server":                shared,
		"two-shares.yaml embedder":              shared,
		"partition-or-share.yaml gpu/partition": {"1g.10gb", "1g.10gb+me"},
		"partition-or-share.yaml gpu/share":     shared,
	}
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) != 6 {
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
				for name, asked := range alternatives(request) {
					got[filepath.Base(file)+" "+name] = asked.devices(t, classes)
				}
			}
		}
		for _, pod := range all[*corev1.Pod](objects) {
			checkClaims(t, file, pod, requests)
			checkLimits(t, file, pod, resources)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices of requests (-want +got):\n%s", diff)
	}
}

// asked is what one request, or one alternative of it, asks for.
type asked struct {
	class     string
	selectors []resourceapi.DeviceSelector
	capacity  *resourceapi.CapacityRequirements
}

// alternatives are by the name that an allocation gives them.
func alternatives(request resourceapi.DeviceRequest) map[string]asked {
	if e := request.Exactly; e != nil {
		return map[string]asked{request.Name: {e.DeviceClassName, e.Selectors, e.Capacity}}
	}
	all := map[string]asked{}
	for _, sub := range request.FirstAvailable {
		all[request.Name+"/"+sub.Name] = asked{sub.DeviceClassName, sub.Selectors, sub.Capacity}
	}
	return all
}

func (a asked) devices(t *testing.T, classes map[string][]resourceapi.DeviceSelector) []string {
	t.Helper()
	selectors, ok := classes[a.class]
	if !ok {
		t.Errorf("no class %q by default", a.class)
	}
	names := matching(t, slices.Concat(selectors, a.selectors))
	for name := range ptr.Deref(a.capacity, resourceapi.CapacityRequirements{}).Requests {
		for _, device := range names {
			if _, ok := devices()[device].Capacity[name]; !ok {
				t.Errorf("device %s has no capacity %q", device, name)
			}
		}
	}
	return names
}

// checkLimits holds a pod's extended resources to those that classes have.
func checkLimits(t *testing.T, file string, pod *corev1.Pod, resources map[corev1.ResourceName]bool) {
	t.Helper()
	for _, container := range pod.Spec.Containers {
		for name := range container.Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/") && !resources[name] {
				t.Errorf("%s: no class has the extended resource %s", file, name)
			}
		}
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

// What the chart writes into a class, the plugin takes.
func TestParametersOfClasses(t *testing.T) {
	seen := 0
	for _, r := range renderings {
		for _, class := range all[*resourceapi.DeviceClass](decode(t, mustTemplate(t, r.args...))) {
			for i, config := range class.Spec.Config {
				seen++
				path := field.NewPath(class.Name, "config").Index(i)
				if _, errs := v1alpha1.DecodeShareClass(config.Opaque.Parameters.Raw, path); len(errs) > 0 || config.Opaque.Driver != v1alpha1.DriverName {
					t.Errorf("driver %s: %v", config.Opaque.Driver, errs.ToAggregate())
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no class has parameters")
	}
}
