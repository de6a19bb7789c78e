package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// Where a node has its driver, and where every container finds what stands for
// the hardware: a real GPU would be in the kernel, which containers share.
const (
	nodeDriverRoot    = "/run/nvidia/driver"
	containerHardware = "/run/nvidia-sim"
)

// makeHardware makes the simulated driver roots and mounts them.
func (p *plan) makeHardware(ctx context.Context) error {
	for i := range p.Nodes {
		node := &p.Nodes[i]
		if node.Hardware == nil {
			continue
		}
		hardware, err := ofNode(*node.Hardware, i)
		if err != nil {
			return err
		}
		root, err := simdriver.NewRoot(ctx, p.node(node.Name, "driver"), hardware)
		if err != nil {
			return fmt.Errorf("make the hardware of node %s: %w", node.Name, err)
		}
		node.Mounts = append(slices.Clip(node.Mounts), Mount{Source: root.Path, Target: nodeDriverRoot})
		if _, err := os.Stat(root.ProcDriver()); err == nil {
			node.Mounts = append(node.Mounts, Mount{Source: root.ProcDriver(), Target: "/proc/driver", ReadOnly: true})
		}
		node.ContainerMounts = append(slices.Clip(node.ContainerMounts),
			Mount{Source: nodeDriverRoot + containerHardware, Target: containerHardware})
	}
	return nil
}

// ofNode gives the GPUs of all nodes but the first UUIDs of their own: two
// nodes may be of one description, but no two GPUs of the world have one UUID.
func ofNode(hardware simdriver.Hardware, index int) (simdriver.Hardware, error) {
	hardware.GPUs = slices.Clone(hardware.GPUs)
	for i := range hardware.GPUs {
		const start, end = len("GPU-"), len("GPU-01234567")
		uuid := hardware.GPUs[i].UUID
		if len(uuid) < end {
			return hardware, fmt.Errorf("GPU %d has no UUID but %q", i, uuid)
		}
		number, err := strconv.ParseUint(uuid[start:end], 16, 32)
		if err != nil {
			return hardware, fmt.Errorf("GPU %d has UUID %q: %w", i, uuid, err)
		}
		hardware.GPUs[i].UUID = fmt.Sprintf("%s%08x%s", uuid[:start], number^uint64(index), uuid[end:])
	}
	return hardware, nil
}

// Driver is the simulated driver of a node: what its hardware has given out,
// and how to make it fail.
func (c *Cluster) Driver(node string) (*simdriver.Root, error) {
	return simdriver.Open(c.plan.node(node, "driver"))
}
