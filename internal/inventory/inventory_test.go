package inventory

import (
	"crypto/rand"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
)

var update = flag.Bool("update", false, "rewrite golden files")

func fixture(t *testing.T, name string) []gpu.Device {
	t.Helper()
	devices, err := gpu.FromFile(filepath.Join("..", "gpu", "testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func TestSlicesOfFixtures(t *testing.T) {
	for _, name := range []string{"vgpu", "odd-memory"} {
		got, err := yaml.Marshal(Resources("node", fixture(t, name), nil))
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, name+".golden.yaml", string(got))
	}
}

// TestDevicesOfFixtures shows what is published of all kinds of GPUs, a line a device. Of several that are alike, the
// first is shown. GPUs whose MIG mode takes a reset are shown in it: out of it they are like any other.
func TestDevicesOfFixtures(t *testing.T) {
	for _, name := range []string{"a30x2", "a100x8", "a100-80x2", "h100x8", "h200x2", "gh200x1", "b200x2", "rtxpro6000x2", "mixed"} {
		devices := fixture(t, name)
		if name != "mixed" {
			devices = devices[:1]
			devices[0].MIG.Enabled = true
		}
		var lines strings.Builder
		for _, slice := range Resources("node", devices, nil).Pools["node/gpus"].Slices {
			for _, set := range slice.SharedCounters {
				fmt.Fprintf(&lines, "set %s has%s\n", set.Name, brief(set.Counters))
			}
			for _, device := range slice.Devices {
				fmt.Fprintln(&lines, line(device))
			}
		}
		checkGolden(t, name+".golden.txt", lines.String())
	}
}

func line(device resourceapi.Device) string {
	var b strings.Builder
	fmt.Fprint(&b, device.Name, ":")
	for _, name := range slices.Sorted(maps.Keys(device.Capacity)) {
		value := device.Capacity[name].Value
		fmt.Fprintf(&b, " %s=%s", name, &value)
	}
	for _, name := range []resourceapi.QualifiedName{v1alpha1.AttributeType, v1alpha1.AttributeProfile, v1alpha1.AttributeUUID, v1alpha1.AttributeParentUUID} {
		if value := device.Attributes[name].StringValue; value != nil {
			fmt.Fprintf(&b, " %s=%q", name, *value)
		}
	}
	for _, consumed := range device.ConsumesCounters {
		fmt.Fprintf(&b, " takes of %s%s", consumed.CounterSet, brief(consumed.Counters))
	}
	return b.String()
}

// brief shows counters, those of memory slices as a range.
func brief(counters map[string]resourceapi.Counter) string {
	var b strings.Builder
	var taken []int
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		value := counters[name].Value
		var slice int
		if n, _ := fmt.Sscanf(name, "memory-slice-%d", &slice); n == 1 && value.Value() == 1 {
			taken = append(taken, slice)
			continue
		}
		fmt.Fprintf(&b, " %s=%s", name, &value)
	}
	slices.Sort(taken)
	return fmt.Sprintf(" slices %v%s", taken, b.String())
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestNodeWithoutGPUsPublishesAnEmptySlice(t *testing.T) {
	for name, devices := range map[string][]gpu.Device{"none": nil, "all reserved": {{UUID: "GPU-0", MemoryTotal: 1 << 30, MemoryReserved: 1 << 30}}} {
		pool := Resources("node", devices, nil).Pools["node/gpus"]
		if len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 0 {
			t.Errorf("%s: got %+v, want one slice without devices", name, pool.Slices)
		}
	}
}

// TestAPIServerTakesEverySlice runs the part of the API server's validation that its API module has; the end-to-end
// tests publish to a real one.
func TestAPIServerTakesEverySlice(t *testing.T) {
	fixtures := map[string][]gpu.Device{"one step": {{UUID: "GPU-0", MemoryTotal: 1 << 20}}, "two steps": {{UUID: "GPU-0", MemoryTotal: 2 << 20}}}
	for _, name := range []string{"a100x8", "h100x8", "mixed", "odd-memory", "rtx4090x1", "t4x4", "vgpu", "a30x2", "a100-80x2", "h200x2", "gh200x1", "b200x2", "rtxpro6000x2"} {
		fixtures[name] = fixture(t, name)
	}
	for name, devices := range fixtures {
		for _, slice := range slicesOf("node", devices) {
			if errs := resourceapi.Validate_ResourceSliceSpec(t.Context(), operation.Operation{Type: operation.Create, Options: gates}, nil, &slice.Spec, nil); len(errs) > 0 {
				t.Errorf("%s: %v", name, errs.ToAggregate())
			}
			for _, device := range slice.Spec.Devices {
				for _, capacity := range device.Capacity {
					checkRange(t, name, capacity)
				}
			}
		}
	}
}

// gates are the options that the validation of slices asks for; what is not published may stay off.
var gates = map[string]bool{"DRAPartitionableDevicesType": false}

// checkRange holds a capacity to what the API server demands of a range: default and maximum are whole steps from the
// minimum, and the first step lies within the value.
func checkRange(t *testing.T, name string, capacity resourceapi.DeviceCapacity) {
	t.Helper()
	r := capacity.RequestPolicy.ValidRange
	lowest, value, preset := r.Min.Value(), capacity.Value.Value(), capacity.RequestPolicy.Default.Value()
	if lowest > value || preset < lowest || preset > value {
		t.Errorf("%s: minimum %d, default %d, value %d", name, lowest, preset, value)
	}
	if r.Step == nil {
		return
	}
	step := r.Step.Value()
	if lowest+step > value || (preset-lowest)%step != 0 || r.Max != nil && (r.Max.Value()-lowest)%step != 0 {
		t.Errorf("%s: minimum %d, step %d, default %d, value %d do not fit", name, lowest, step, preset, value)
	}
}

func TestSemver(t *testing.T) {
	for version, want := range map[string]string{"580.95.05": "580.95.5", "13.0": "13.0.0", "9.0": "9.0.0", "": "", "1.2.3.4": "", "N/A": "", "-1.0": ""} {
		if got, err := semver(version); got != want || (err == nil) != (want != "") {
			t.Errorf("semver(%q) = %q, %v; want %q", version, got, err, want)
		}
	}
}

// TestSchedulerShares lets the scheduler's own allocator decide on what is published.
func TestSchedulerShares(t *testing.T) {
	s := newScheduler(t, fixture(t, "mixed"))
	if got := s.allocate(t, request("10Gi", "30")); !slices.Equal(got, []string{"gpu-0 10Gi 30"}) {
		t.Errorf("first share: %v, want it on the first GPU", got)
	}
	if got := s.allocate(t, request("20Gi", "50")); !slices.Equal(got, []string{"gpu-0 20Gi 50"}) {
		t.Errorf("second share: %v, want it beside the first", got)
	}
	if got := s.allocate(t, request("1Gi", "21")); !slices.Equal(got, []string{"gpu-1 1Gi 21"}) {
		t.Errorf("share that exceeds the cores left: %v, want the next GPU", got)
	}
	if got := s.allocate(t, request("", "")); !slices.Equal(got, []string{"gpu-2 14911Mi 0"}) {
		t.Errorf("claim that asks nothing: %v, want a GPU of its own", got)
	}
	if got := s.allocate(t, request("70Gi", "0")); got != nil {
		t.Errorf("share that fits nowhere: %v, want none", got)
	}
	if got := s.allocate(t, request("1", "0")); !slices.Equal(got, []string{"gpu-0 1Mi 0"}) {
		t.Errorf("one byte: %v, want a step of memory", got)
	}
	if got := s.allocate(t, request("1Gi", "101")); got != nil {
		t.Errorf("101 percent: %v, want none", got)
	}
	two := request("10Gi", "0", "5Gi", "0")
	if got := s.allocate(t, two); !slices.Equal(got, []string{"gpu-0 10Gi 0", "gpu-0 5Gi 0"}) {
		t.Errorf("two requests of one claim: %v, want both on one GPU", got)
	}
	choosy := request("1Gi", "0")
	choosy.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `
		device.attributes["gpu.aliquot.dev"].productName.contains("4090") &&
		device.capacity["gpu.aliquot.dev"].memory.compareTo(quantity("20Gi")) > 0 &&
		device.attributes["gpu.aliquot.dev"].driverVersion.isGreaterThan(semver("580.0.0"))`}}}
	if got := s.allocate(t, choosy); !slices.Equal(got, []string{"gpu-3 1Gi 0"}) {
		t.Errorf("CEL on model, memory and version: %v, want the RTX 4090", got)
	}
}

// scheduler is the allocator of kube-scheduler with the features that Kubernetes 1.37 has on, and what it gave out.
type scheduler struct {
	slices []*resourceapi.ResourceSlice
	given  map[types.UID][]resourceapi.DeviceRequestAllocationResult
}

func newScheduler(t *testing.T, devices []gpu.Device) *scheduler {
	t.Helper()
	return &scheduler{slices: slicesOf("node", devices), given: map[types.UID][]resourceapi.DeviceRequestAllocationResult{}}
}

// allocate returns "device memory cores" for each result, nil if the claim does not fit.
func (s *scheduler) allocate(t *testing.T, claim *resourceapi.ResourceClaim) []string {
	t.Helper()
	features := structured.Features{AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true}
	allocator, err := structured.NewAllocator(t.Context(), features, s.state(), classes{}, s.slices, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	allocations, err := allocator.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	if len(allocations) == 0 {
		return nil
	}
	s.given[claim.UID] = allocations[0].Devices.Results
	var got []string
	for _, result := range allocations[0].Devices.Results {
		memory, cores := result.ConsumedCapacity[v1alpha1.CapacityMemory], result.ConsumedCapacity[v1alpha1.CapacityCores]
		got = append(got, fmt.Sprintf("%s %s %s", result.Device, &memory, &cores))
	}
	return got
}

// free gives back what a claim had.
func (s *scheduler) free(claim *resourceapi.ResourceClaim) { delete(s.given, claim.UID) }

// state is what the scheduler knows to be allocated.
func (s *scheduler) state() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, results := range s.given {
		for _, result := range results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
		}
	}
	return state
}

// classes knows the class share, which has every GPU of the driver, and mig, which has every partition.
type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }
func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	kind := map[string]string{"share": v1alpha1.TypeGPU, "mig": v1alpha1.TypeMIG}[name]
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.driver == "gpu.aliquot.dev" && device.attributes["gpu.aliquot.dev"].type == %q`, kind),
		}}},
	}}, nil
}

// request makes a claim with one request for each pair of memory and cores; an empty amount is not requested.
func request(pairs ...string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: types.UID(rand.Text())}}
	for i := 0; i < len(pairs); i += 2 {
		r := resourceapi.DeviceRequest{Name: fmt.Sprintf("gpu-%d", i/2), Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "share", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}},
		}}
		for j, name := range []resourceapi.QualifiedName{v1alpha1.CapacityMemory, v1alpha1.CapacityCores} {
			if amount := pairs[i+j]; amount != "" {
				r.Exactly.Capacity.Requests[name] = resource.MustParse(amount)
			}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, r)
	}
	return claim
}

// slicesOf turns what is published into the objects that the scheduler sees.
func slicesOf(nodeName string, devices []gpu.Device) []*resourceapi.ResourceSlice {
	pool := Resources(nodeName, devices, nil).Pools[PoolName(nodeName)]
	objects := make([]*resourceapi.ResourceSlice, 0, len(pool.Slices))
	for i, slice := range pool.Slices {
		objects = append(objects, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s", i, strings.ReplaceAll(nodeName, "/", "-"))},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, NodeName: ptr.To(nodeName), Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: PoolName(nodeName), Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			},
		})
	}
	return objects
}
