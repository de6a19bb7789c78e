package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/simdriver"
)

// Hardware is what the hardware's own ledger says of each container of a pod: for each, used and peak bytes by GPU UUID.
func (w *World) Hardware(node, pod string) ([]map[string]simdriver.Usage, error) {
	ledger, err := w.ledger(node)
	if err != nil {
		return nil, err
	}
	var usages []map[string]simdriver.Usage
	for _, c := range ledger.Containers {
		if c.Hostname == pod {
			usages = append(usages, c.GPUs)
		}
	}
	return usages, nil
}

// Busy is for how long a node's GPUs have worked for the living processes of a pod.
func (w *World) Busy(node, pod string) (time.Duration, error) {
	ledger, err := w.ledger(node)
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, p := range ledger.Processes {
		if p.Hostname != pod {
			continue
		}
		for _, busy := range p.Busy {
			sum += busy
		}
	}
	return sum, nil
}

// DeviceNames says which published devices a program saw, as "node-1 gpu-0".
func (w *World) DeviceNames(ctx context.Context, p Program) (string, error) {
	slices, err := w.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	names := map[string]string{}
	for _, slice := range slices.Items {
		for _, device := range slice.Spec.Devices {
			if uuid := device.Attributes[v1alpha1.AttributeUUID].StringValue; uuid != nil {
				names[*uuid] = device.Name
			}
		}
	}
	saw := []string{p.Node}
	for _, uuid := range p.GPUs() {
		saw = append(saw, names[uuid])
	}
	return strings.Join(saw, " "), nil
}

// GPU is what the ledger says of one GPU.
func (w *World) GPU(node, uuid string) (simdriver.LedgerGPU, error) {
	ledger, err := w.ledger(node)
	if err != nil {
		return simdriver.LedgerGPU{}, err
	}
	for _, gpu := range ledger.GPUs {
		if gpu.UUID == uuid {
			return gpu, nil
		}
	}
	return simdriver.LedgerGPU{}, fmt.Errorf("node %s has no GPU %s", node, uuid)
}

func (w *World) ledger(node string) (simdriver.Ledger, error) {
	root, err := w.Driver(node)
	if err != nil {
		return simdriver.Ledger{}, err
	}
	return root.Ledger()
}

// Leftovers lists what should not be once no claim is left: memory in use, records, share files and CDI specs.
func (w *World) Leftovers(ctx context.Context) ([]string, error) {
	var left []string
	for _, node := range w.Nodes() {
		ledger, err := w.ledger(node)
		if err != nil {
			return nil, err
		}
		for _, gpu := range ledger.GPUs {
			if gpu.Used > 0 {
				left = append(left, fmt.Sprintf("node %s: %d bytes of GPU %s", node, gpu.Used, gpu.UUID))
			}
		}
		files, err := w.OnNode(ctx, node, "sh", "-c", "ls -d /run/aliquot/shares/* /var/run/cdi/gpu.aliquot.dev* /var/lib/kubelet/plugins/gpu.aliquot.dev/claims/* 2>/dev/null || true")
		if err != nil {
			return nil, err
		}
		for _, file := range strings.Fields(files) {
			left = append(left, fmt.Sprintf("node %s: %s", node, file))
		}
	}
	return left, nil
}
