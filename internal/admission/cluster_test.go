package admission

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// cluster is what the tests' API server has.
type cluster struct {
	classes  map[string]*resourceapi.DeviceClass
	slices   []resourceapi.ResourceSlice
	broken   bool
	noSlices bool
	panicked bool
}

var _ Cluster = (*cluster)(nil)

func (c *cluster) Class(_ context.Context, name string) (*resourceapi.DeviceClass, error) {
	if c.panicked {
		panic("a bug")
	}
	if c.broken {
		return nil, errors.New("the API server is away")
	}
	return c.classes[name], nil
}

func (c *cluster) Slices(context.Context) ([]resourceapi.ResourceSlice, error) {
	if c.broken || c.noSlices {
		return nil, errors.New("the API server is away")
	}
	return c.slices, nil
}

// newCluster has the chart's classes, those of testdata/classes.yaml, and the nodes' GPUs by their description.
func newCluster(t testing.TB, hardware ...string) *cluster {
	t.Helper()
	c := &cluster{classes: map[string]*resourceapi.DeviceClass{}}
	for _, file := range []string{"../../deployments/testdata/default.golden.yaml", "testdata/classes.yaml"} {
		for _, class := range classesIn(t, file) {
			c.classes[class.Name] = class
		}
	}
	for _, name := range hardware {
		devices, err := gpu.FromFile("../gpu/testdata/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for pool, published := range inventory.Resources(name, devices, nil).Pools {
			for _, slice := range published.Slices {
				c.slices = append(c.slices, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
					Driver: "gpu.aliquot.dev", NodeName: &name, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
					Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(published.Slices))},
				}})
			}
		}
	}
	return c
}

func classesIn(t testing.TB, file string) []*resourceapi.DeviceClass {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var classes []*resourceapi.DeviceClass
	for _, document := range strings.Split(string(data), "\n---\n") {
		if !strings.Contains(document, "kind: DeviceClass\n") {
			continue
		}
		var class resourceapi.DeviceClass
		if err := yaml.UnmarshalStrict([]byte(document), &class); err != nil {
			t.Fatalf("%s: %v in\n%s", file, err, document)
		}
		classes = append(classes, &class)
	}
	return classes
}

// amounts are pairs of a name and a quantity.
func amounts(t testing.TB, pairs ...string) map[resourceapi.QualifiedName]resource.Quantity {
	t.Helper()
	all := map[resourceapi.QualifiedName]resource.Quantity{}
	for i := 0; i < len(pairs); i += 2 {
		q, err := resource.ParseQuantity(pairs[i+1])
		if err != nil {
			t.Fatal(err)
		}
		all[resourceapi.QualifiedName(pairs[i])] = q
	}
	return all
}
