package cluster

import (
	"testing"

	"aliquot.dev/aliquot/e2e/simdriver"
)

func TestNoTwoNodesHaveOneGPU(t *testing.T) {
	for _, name := range simdriver.Names() {
		hardware, err := simdriver.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		before := hardware.GPUs[0].UUID
		seen := make(map[string]int)
		for node := range 3 {
			own, err := ofNode(hardware, node)
			if err != nil {
				t.Fatal(err)
			}
			if err := own.Validate(); err != nil {
				t.Errorf("%s on node %d: %v", name, node, err)
			}
			for _, gpu := range own.GPUs {
				if other, ok := seen[gpu.UUID]; ok {
					t.Errorf("%s: nodes %d and %d both have %s", name, other, node, gpu.UUID)
				}
				seen[gpu.UUID] = node
			}
		}
		if hardware.GPUs[0].UUID != before {
			t.Errorf("%s: the description itself changed", name)
		}
	}
}
