//go:build e2e

package specs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/internal/inventory"
)

// settled waits until nothing on the spec's node is on its way, and says what then is not as it always must be.
func (s *spec) settled(ctx context.Context) error {
	if err := s.neverTooMuch(); err != nil {
		return err
	}
	return scenario.Eventually(ctx, "node "+s.node+" agrees with the API", func(ctx context.Context) (bool, error) {
		state, err := s.State(s.node)
		if err != nil {
			return false, err
		}
		claims, err := s.liveClaims(ctx)
		if err != nil {
			return false, err
		}
		err = errors.Join(agree(state, claims), notOvercommitted(state, s.allocatable(ctx)), s.nothingOfTheDead(ctx))
		return err == nil, err
	})
}

// neverTooMuch checks that no GPU of any node ever gave out more than it has.
func (s *spec) neverTooMuch() error {
	for _, node := range s.Nodes() {
		driver, err := s.Driver(node)
		if err != nil {
			return err
		}
		ledger, err := driver.Ledger()
		if err != nil {
			return err
		}
		if err := withinCapacity(ledger); err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
	}
	return nil
}

func withinCapacity(ledger simdriver.Ledger) error {
	for _, gpu := range ledger.GPUs {
		if gpu.Peak > gpu.Capacity {
			return fmt.Errorf("GPU %s gave out %d bytes and has %d", gpu.UUID, gpu.Peak, gpu.Capacity)
		}
	}
	return nil
}

// agree checks that records, specs and share directories are of the same claims as the API gave to the node.
func agree(state scenario.State, claims []resourceapi.ResourceClaim) error {
	var recorded, limited, live []string
	for _, r := range state.Records {
		recorded = append(recorded, r.UID)
		if r.Limited() {
			limited = append(limited, r.UID)
		}
	}
	for _, claim := range claims {
		live = append(live, string(claim.UID))
	}
	var errs []error
	for _, mark := range state.Marks {
		if !slices.ContainsFunc(state.Records, func(r scenario.Record) bool { return slices.Contains(r.Marks(), mark) }) {
			errs = append(errs, fmt.Errorf("partition %s is marked, and no claim has it", mark))
		}
	}
	for what, pair := range map[string][2][]string{
		"records and claims":           {recorded, live},
		"specs and claims":             {state.Specs, live},
		"share directories and shares": {state.Shares, limited},
	} {
		slices.Sort(pair[0])
		slices.Sort(pair[1])
		if !slices.Equal(pair[0], pair[1]) {
			errs = append(errs, fmt.Errorf("%s differ: %v, %v", what, pair[0], pair[1]))
		}
	}
	if len(state.Other) > 0 {
		errs = append(errs, fmt.Errorf("files that are no records: %q", state.Other))
	}
	return errors.Join(errs...)
}

// liveClaims are the claims that have something of the spec's node.
func (s *spec) liveClaims(ctx context.Context) ([]resourceapi.ResourceClaim, error) {
	claims, err := s.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(claims.Items, func(claim resourceapi.ResourceClaim) bool {
		return claim.Status.Allocation == nil || !slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
			func(result resourceapi.DeviceRequestAllocationResult) bool {
				return result.Driver == v1alpha1.DriverName && result.Pool == inventory.PoolName(s.node)
			})
	}), nil
}

// notOvercommitted checks that the shares of each GPU are together not more than it has. Partitions the hardware itself
// keeps apart, and together they may have more than a GPU that is not divided.
func notOvercommitted(state scenario.State, allocatable map[string]uint64) error {
	memory, cores := map[string]uint64{}, map[string]int{}
	for _, r := range state.Records {
		for _, a := range r.Allocations {
			if a.Partition != nil {
				continue
			}
			memory[a.GPU] += a.Limits.MemoryBytes
			cores[a.GPU] += a.Limits.CorePercent
		}
	}
	for uuid, bytes := range memory {
		if has, ok := allocatable[uuid]; ok && bytes > has {
			return fmt.Errorf("shares of GPU %s are %d bytes, it has %d", uuid, bytes, has)
		}
		if cores[uuid] > v1alpha1.AllCores {
			return fmt.Errorf("shares of GPU %s are %d percent of its cores", uuid, cores[uuid])
		}
	}
	return nil
}

// allocatable is the memory of the published GPUs by UUID, in bytes.
func (s *spec) allocatable(ctx context.Context) map[string]uint64 {
	memory := map[string]uint64{}
	devices, err := s.devices(ctx, s.node)
	if err != nil {
		return nil
	}
	for _, device := range devices {
		if *device.Attributes[v1alpha1.AttributeType].StringValue != v1alpha1.TypeGPU {
			continue // a partition's memory is of its GPU
		}
		capacity := device.Capacity[v1alpha1.CapacityMemory].Value
		memory[*device.Attributes[v1alpha1.AttributeUUID].StringValue] = uint64(capacity.Value())
	}
	return memory
}

// nothingOfTheDead checks that pods that are gone hold no memory of a GPU.
func (s *spec) nothingOfTheDead(ctx context.Context) error {
	pods, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.node})
	if err != nil {
		return err
	}
	alive := map[string]bool{}
	for _, pod := range pods.Items {
		alive[pod.Name] = true
	}
	driver, err := s.Driver(s.node)
	if err != nil {
		return err
	}
	ledger, err := driver.Ledger()
	if err != nil {
		return err
	}
	for _, c := range ledger.Containers {
		for uuid, usage := range c.GPUs {
			if usage.Used > 0 && !alive[c.Hostname] {
				return fmt.Errorf("pod %s is gone and holds %d bytes of GPU %s", c.Hostname, usage.Used, uuid)
			}
		}
	}
	return nil
}

// devices are what a node publishes.
func (s *spec) devices(ctx context.Context, node string) ([]resourceapi.Device, error) {
	list, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node})
	if err != nil {
		return nil, err
	}
	var devices []resourceapi.Device
	for _, slice := range list.Items {
		devices = append(devices, slice.Spec.Devices...)
	}
	return devices, nil
}
