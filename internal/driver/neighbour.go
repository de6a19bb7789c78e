package driver

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// DevicePluginResource names the resources by which a device plugin gives out this node's GPUs, "" if there are none.
// What the scheduler gives out of DRA devices as extended resources is not among them. A device plugin that went away
// stays in the capacity for as long as the kubelet waits for it to come back (GetCapacity in
// k8s.io/kubernetes/pkg/kubelet/cm/devicemanager), while its pods run on.
func DevicePluginResource(node *corev1.Node) string {
	var found []string
	for name, amount := range node.Status.Capacity {
		if (name == "nvidia.com/gpu" || strings.HasPrefix(string(name), "nvidia.com/gpu.") || strings.HasPrefix(string(name), "nvidia.com/mig-")) && amount.Sign() > 0 {
			found = append(found, string(name))
		}
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}

// sawAllocatable withdraws the node's GPUs where a device plugin gives them out too: each would be given out twice. They
// come back when it is gone. Until the node was seen once nothing is published.
func (d *Driver) sawAllocatable(node *corev1.Node) {
	found := DevicePluginResource(node)
	before := d.neighbour.Swap(&found)
	if before != nil && *before == found {
		return
	}
	if err := d.conflict(); err != nil {
		d.warnNode("DevicePluginFound", "Publish", "%v", err)
	}
	d.publishAgain()
}

// conflict says why nothing of this node may be published, nil if nothing is in the way.
func (d *Driver) conflict() error {
	if found := d.neighbour.Load(); found != nil && *found != "" && !d.config.BesideDevicePlugin {
		return fmt.Errorf("a device plugin offers %s of this node, and GPUs would be given out twice: turn it off on this node, or set besideDevicePlugin if its GPUs are not among those published here", *found)
	}
	return nil
}
