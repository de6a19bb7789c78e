package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/quota"
)

// features are those that are on in Kubernetes 1.37 by default.
var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, FractionalCapacityRange: true,
	PartitionableDevices: true, PrioritizedList: true,
}

// scheduler is the allocator of kube-scheduler over an unused cluster.
type scheduler struct {
	*cluster
	slices []*resourceapi.ResourceSlice
	cel    *dracel.Cache
}

func newScheduler(c *cluster) *scheduler {
	s := &scheduler{cluster: c, cel: dracel.NewCache(1000, dracel.Features{EnableConsumableCapacity: true})}
	for i := range c.slices {
		s.slices = append(s.slices, &c.slices[i])
	}
	return s
}

func (s *scheduler) List() ([]*resourceapi.DeviceClass, error) {
	return slices.Collect(maps.Values(s.classes)), nil
}

func (s *scheduler) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := s.classes[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("no class %q", name)
}

// allocate returns what a claim gets on each node where it gets something, or the error that has the pod given up.
func (s *scheduler) allocate(t *testing.T, spec resourceapi.ResourceClaimSpec) ([]resourceapi.AllocationResult, error) {
	t.Helper()
	// As the API server fills it in.
	for i := range spec.Devices.Requests {
		if e := spec.Devices.Requests[i].Exactly; e != nil {
			e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeExactCount, 1
		}
		for j := range spec.Devices.Requests[i].FirstAvailable {
			sub := &spec.Devices.Requests[i].FirstAvailable[j]
			sub.AllocationMode, sub.Count = resourceapi.DeviceAllocationModeExactCount, 1
		}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: "claim"}, Spec: spec}
	var all []resourceapi.AllocationResult
	nodes := sets.New[string]()
	for _, slice := range s.slices {
		name := *slice.Spec.NodeName
		if nodes.Has(name) {
			continue
		}
		nodes.Insert(name)
		state := structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		}
		allocator, err := structured.NewAllocator(t.Context(), features, state, s, s.slices, s.cel)
		if err != nil {
			t.Fatal(err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		results, err := allocator.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
		if err != nil {
			return nil, err
		}
		all = append(all, results...)
	}
	return all, nil
}

// node returns what the node plugin says of an allocation before it prepares it: the amounts, then the bounds of the classes
// (internal/driver, planResult).
func (s *scheduler) node(t *testing.T, allocation resourceapi.AllocationResult) (problems []string) {
	t.Helper()
	for _, result := range allocation.Devices.Results {
		total := s.total(t, result)
		limits, err := quota.For(result, uint64(total.Value()))
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		for _, config := range resourceclaim.ConfigForResult(allocation.Devices.Config, result) {
			class, errs := v1alpha1.DecodeShareClass(config.Opaque.Parameters.Raw, nil)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			for _, err := range class.Bounds(limits.MemoryBytes, limits.CorePercent, field.NewPath("consumedCapacity")) {
				problems = append(problems, err.Detail)
			}
		}
	}
	return problems
}

func (s *scheduler) total(t *testing.T, result resourceapi.DeviceRequestAllocationResult) resource.Quantity {
	t.Helper()
	for _, slice := range s.slices {
		for _, device := range slice.Spec.Devices {
			if slice.Spec.Pool.Name == result.Pool && device.Name == result.Device {
				return device.Capacity[v1alpha1.CapacityMemory].Value
			}
		}
	}
	t.Fatalf("no device %s", result.Device)
	return resource.Quantity{}
}

// anyClaim asks for amounts at and about the places where rules change.
func anyClaim(t *testing.T, r *rand.Rand, classes []string) resourceapi.ResourceClaimSpec {
	t.Helper()
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	capacity := func() *resourceapi.CapacityRequirements {
		var pairs []string
		if memory := pick("", "", "0", "-1Gi", "1Mi", "1", "1048577", "1Gi", "1.5Gi", "0.1Gi", "0.33333Gi", "4Gi", "20Gi", "21474836481", "21Gi", "14911Mi",
			"14910.5Mi", "14912Mi", "24064Mi", "80Gi", "100Gi", "8Pi", "9Pi", "9223372036854775807"); memory != "" {
			pairs = append(pairs, "memory", memory)
		}
		if cores := pick("", "", "0", "1", "4", "5", "10", "50", "51", "100", "101", "-1", "0.5"); cores != "" {
			pairs = append(pairs, "cores", cores)
		}
		if other := pick("", "", "", "", "", "copyEngines", "multiprocessors", "memroy"); other != "" {
			pairs = append(pairs, other, pick("0", "1", "3", "1000"))
		}
		return &resourceapi.CapacityRequirements{Requests: amounts(t, pairs...)}
	}
	var spec resourceapi.ResourceClaimSpec
	if r.IntN(4) > 0 {
		spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: pick(classes...), Capacity: capacity()}}}
		return spec
	}
	spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: pick(classes...), Capacity: capacity()}, {Name: "b", DeviceClassName: pick(classes...), Capacity: capacity()},
	}}}
	return spec
}

// What is let through the scheduler can reckon with; what comes without a warning fits an unused cluster, and no node refuses
// it; and bounds are told in the words of the node.
func TestSchedulerAndNodeAgree(t *testing.T) {
	c := newCluster(t, "t4x4", "a30x2")
	s := newScheduler(c)
	checker := New(c)
	classes := []string{
		"gpu.aliquot.dev", "share.gpu.aliquot.dev", "mig.gpu.aliquot.dev", "mig-1g.6gb.gpu.aliquot.dev", "bounded.gpu.aliquot.dev", "defaults.gpu.aliquot.dev",
		"cores.gpu.aliquot.dev", "large.gpu.aliquot.dev", "middle.gpu.aliquot.dev", "turing.gpu.aliquot.dev",
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]int{}
	for range 3000 {
		spec := anyClaim(t, r, classes)
		if err := checker.Default(t.Context(), &spec); err != nil {
			t.Fatal(err)
		}
		found, err := checker.Claim(t.Context(), spec.DeepCopy(), field.NewPath("spec"))
		if err != nil {
			t.Fatal(err)
		}
		allocations, fatal := s.allocate(t, *spec.DeepCopy())
		var refused []string
		for _, allocation := range allocations {
			refused = append(refused, s.node(t, allocation)...)
		}
		switch {
		case len(found.Errors) == 0 && fatal != nil:
			t.Fatalf("seed %d: let through, and the scheduler says %v: %+v", seed, fatal, spec)
		case len(found.Errors) == 0 && len(refused) > 0 && len(found.Warnings) == 0:
			t.Fatalf("seed %d: let through, and a node says %v: %+v", seed, refused, spec)
		case len(found.Errors) == 0 && len(found.Warnings) == 0 && len(allocations) == 0:
			t.Fatalf("seed %d: no node takes it, and there is no warning: %+v", seed, spec)
		case len(found.Errors) == 0:
			counts[fmt.Sprintf("let through, %d warnings", min(1, len(found.Warnings)))]++
		case len(spec.Devices.Requests[0].FirstAvailable) == 0 && len(refused) > 0:
			counts["refused by both"]++
			if !justTheMemory(spec) {
				sameWords(t, found.Errors, refused)
			}
		}
	}
	if len(counts) < 3 {
		t.Errorf("the claims are too much alike: %v", counts)
	}
}

// justTheMemory says whether a claim asks for all the memory of a GPU of this test's cluster, and so, without cores, for the
// GPU. What else is wrong with it is told first.
func justTheMemory(spec resourceapi.ResourceClaimSpec) bool {
	r, _ := v1alpha1.ParseRequest(spec.Devices.Requests[0].Exactly.Capacity.Requests, nil)
	return r.MemoryBytes == 14911<<20 || r.MemoryBytes == 24064<<20
}

// sameWords checks that bounds that a node found crossed were told in its words, where no amount was wrong by itself.
func sameWords(t *testing.T, errs field.ErrorList, refused []string) {
	t.Helper()
	for _, words := range refused {
		if !slices.ContainsFunc(errs, func(err *field.Error) bool {
			return strings.HasPrefix(err.Detail, words) || !strings.HasPrefix(err.Detail, "the device class")
		}) {
			t.Errorf("the node says %q, and the webhook %v", words, errs)
		}
	}
}
