package preflight

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// patience is how long the API server may take for all that it is asked.
const patience = 10 * time.Second

// cluster checks what the API server says of itself, of the node and of the node's slices.
func (c Config) cluster(ctx context.Context, gpus []gpu.Device) []Finding {
	const check = "API server"
	if c.Client == nil {
		return []Finding{warn(check, "name a kubeconfig with --kubeconfig, or run this in the plugin's pod", "not asked: %v", c.NoClient)}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	findings, err := c.ask(ctx, gpus)
	if err != nil {
		findings = append(findings, fail(check, "look for what is between this node and the API server, and whether the plugin's service account has the chart's rights", "%v", err))
	}
	return findings
}

func (c Config) ask(ctx context.Context, gpus []gpu.Device) ([]Finding, error) {
	server, err := discovery.ToServerVersionInterfaceWithContext(c.Client.Discovery()).ServerVersionWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the version: %w", err)
	}
	findings := []Finding{apiServer(server.GitVersion)}
	node, err := c.Client.CoreV1().Nodes().Get(ctx, c.NodeName, metav1.GetOptions{})
	if err != nil {
		return findings, fmt.Errorf("read node %s: %w", c.NodeName, err)
	}
	findings = append(findings, kubelet(node.Status.NodeInfo.KubeletVersion), runtimeOf(node.Status.NodeInfo.ContainerRuntimeVersion))
	plugin := c.devicePlugin(node)
	findings = append(findings, plugin)
	if plugin.Level != OK {
		return findings, nil // nothing is published
	}
	stored, err := c.stored(ctx)
	if err != nil {
		return findings, err
	}
	return append(findings, published(stored, gpus)...), nil
}

// stored are the node's slices as the API server has them.
func (c Config) stored(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := c.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: c.NodeName, resourceapi.ResourceSliceSelectorDriver: v1alpha1.DriverName,
	}.String()})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	return list.Items, nil
}

// apiServer checks the version of the API server. The scheduler, whose version cannot be asked, mostly has the same.
func apiServer(v string) Finding {
	const check = "API server"
	switch parsed, err := version.ParseGeneric(v); {
	case err != nil:
		return warn(check, "want 1.36 or newer", "its version is %q", v)
	case parsed.LessThan(version.MajorMinor(1, 36)):
		return fail(check, "upgrade the control plane to 1.36 or newer: before, DRA had neither shares nor partitions unless feature gates were turned on", "Kubernetes %s", v)
	case parsed.LessThan(version.MajorMinor(1, 37)):
		return warn(check, "until the upgrade to 1.37 keep shares and MIG partitions on different nodes",
			"Kubernetes %s, whose scheduler does not keep shares and partitions of one GPU apart", v)
	}
	return ok(check, "Kubernetes %s", v)
}

// kubelet checks the kubelet's version: DRA is on by default from 1.34 (pkg/features/kube_features.go in
// k8s.io/kubernetes), and what is older than 1.36 was never tried.
func kubelet(v string) Finding {
	const check = "kubelet"
	const remedy = "upgrade the kubelet to 1.36 or newer"
	switch parsed, err := version.ParseGeneric(v); {
	case err != nil:
		return warn(check, remedy, "its version is %q", v)
	case parsed.LessThan(version.MajorMinor(1, 34)):
		return fail(check, remedy, "%s, which does not prepare claims by default", v)
	case parsed.LessThan(version.MajorMinor(1, 36)):
		return warn(check, remedy, "%s, with which Aliquot was not tried", v)
	}
	return ok(check, "%s", v)
}

// runtimeOf checks that the container runtime understands CDI devices, as far as its version tells.
//   - containerd takes them from the CRI from 1.7.2 on, and CRI-O from 1.28 (kubernetes/kubernetes#125210)
//   - containerd's enable_cdi is true by default from 2.0 on (containerd/containerd#9621, not taken over into 1.7: #9666),
//     and ignored from 2.4 on (RELEASES.md); CRI-O always has CDI on
func runtimeOf(name string) Finding {
	const check = "container runtime"
	kind, number, _ := strings.Cut(name, "://")
	parsed, err := version.ParseGeneric(number)
	older := func(major, minor, patch uint) bool {
		return parsed.LessThan(version.MustParseGeneric(fmt.Sprintf("%d.%d.%d", major, minor, patch)))
	}
	const enable = "[plugins.\"io.containerd.grpc.v1.cri\"] enable_cdi = true in containerd's config.toml, and restart it"
	switch {
	case err != nil || kind != "containerd" && kind != "cri-o":
		return warn(check, "see that it injects the CDI devices that the kubelet names; containerd 2 and CRI-O do", "%s: not known here", name)
	case kind == "cri-o" && older(1, 28, 0), kind == "containerd" && older(1, 7, 2):
		return fail(check, "upgrade to containerd 2 or a CRI-O of the cluster's version", "%s %s does not take CDI devices from the kubelet", kind, number)
	case kind == "containerd" && older(2, 0, 0):
		return warn(check, "set "+enable+"; better, upgrade to containerd 2", "containerd %s has CDI off unless it is configured", number)
	case kind == "containerd" && older(2, 4, 0):
		return ok(check, "containerd %s, with CDI on unless its configuration says enable_cdi = false", number)
	}
	return ok(check, "%s %s, with CDI on", kind, number)
}

// devicePlugin checks that the node's GPUs are not given out by a device plugin too.
func (c Config) devicePlugin(node *corev1.Node) Finding {
	const check = "device plugin"
	switch offers := c.DevicePlugin(node); {
	case offers == "":
		return ok(check, "none offers GPUs of this node")
	case c.BesideDevicePlugin:
		return ok(check, "one offers %s, and besideDevicePlugin is set", offers)
	default:
		return fail(check, "take the device plugin off this node (GPU operator: devicePlugin.enabled=false), or keep Aliquot off it (kubeletPlugin.affinity); set besideDevicePlugin if they have different GPUs",
			"one offers %s of this node: nothing is published, since GPUs would be given out twice", offers)
	}
}

// published checks what the API server stored of the node's slices.
func published(stored []resourceapi.ResourceSlice, gpus []gpu.Device) []Finding {
	const check = "ResourceSlices"
	var devices []resourceapi.Device
	for i := range stored {
		devices = append(devices, stored[i].Spec.Devices...)
	}
	if len(devices) == 0 && len(gpus) > 0 {
		return []Finding{fail(check, "see the plugin's readiness and log, and the node's Events, for why it publishes nothing", "none with devices of this node: the scheduler knows of no GPU here")}
	}
	var findings []Finding
	for _, gate := range inventory.Dropped(stored) {
		findings = append(findings, fail(check, "turn on the feature gate "+gate.Name+" in kube-apiserver and kube-scheduler", "the API server dropped fields: %s", gate.Lost))
	}
	if before, now, differ := otherDriver(devices, gpus); differ {
		findings = append(findings, warn(check, "restart the plugin's pod: a process keeps the NVML that it loaded first", "published with driver %s, and the node has %s", before, now))
	}
	if len(findings) > 0 {
		return findings
	}
	return []Finding{ok(check, "%d with %d devices, as they were published", len(stored), len(devices))}
}

// otherDriver says whether the plugin has published another version of the driver than there is.
func otherDriver(devices []resourceapi.Device, gpus []gpu.Device) (before, now string, differ bool) {
	if len(gpus) == 0 {
		return "", "", false
	}
	now = ptr.Deref(inventory.Attributes(gpus[0])[v1alpha1.AttributeDriverVersion].VersionValue, "")
	for _, device := range devices {
		before = ptr.Deref(device.Attributes[v1alpha1.AttributeDriverVersion].VersionValue, "")
		if before != "" && before != now {
			return before, now, true
		}
	}
	return "", "", false
}
