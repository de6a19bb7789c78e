package nvml

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	transformroot "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Edits are what the driver needs in a container, from the NVIDIA Container Toolkit: for every container with a GPU
// (control nodes, driver libraries, hooks) and for each of the given GPUs and partitions, by UUID. Paths are the host's. A
// partition whose device nodes are not found is left out, so that it keeps no GPU from being used.
func (n *Node) Edits(uuids []string) (common specs.ContainerEdits, byUUID map[string]specs.ContainerEdits, err error) {
	lib, shutdown, err := n.open()
	if err != nil {
		return specs.ContainerEdits{}, nil, err
	}
	defer shutdown()
	toolkit, err := nvcdi.New(
		nvcdi.WithLogger(toolkitLog{klog.Background().WithName("nvcdi")}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithDriverRoot(n.driver.RootMount),
		nvcdi.WithDevRoot(n.driver.RootMount),
		nvcdi.WithNVIDIACDIHookPath(n.driver.CDIHook),
		nvcdi.WithDeviceNamers(uuidNamer{}),
		// It would give a container's own environment a say in the memory limit of its cgroup.
		nvcdi.WithDisabledHooks("apply-cuda-memory-limits"),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return specs.ContainerEdits{}, nil, fmt.Errorf("open the container toolkit: %w", err)
	}
	spec := &specs.Spec{}
	commonEdits, err := toolkit.GetCommonEdits()
	if err != nil {
		return specs.ContainerEdits{}, nil, fmt.Errorf("find driver libraries: %w", err)
	}
	spec.ContainerEdits = *commonEdits.ContainerEdits
	for _, uuid := range uuids {
		devices, err := toolkit.GetDeviceSpecsByID(uuid)
		if err != nil && isPartition(uuid) {
			klog.Background().Error(err, "Find the device nodes of a partition", "uuid", uuid)
			continue
		}
		if err != nil {
			return specs.ContainerEdits{}, nil, fmt.Errorf("find the device nodes of GPU %s: %w", uuid, err)
		}
		spec.Devices = append(spec.Devices, devices...)
	}
	if err := n.toHost(spec); err != nil {
		return specs.ContainerEdits{}, nil, err
	}
	byUUID = map[string]specs.ContainerEdits{}
	for _, d := range spec.Devices {
		byUUID[d.Name] = d.ContainerEdits
	}
	return spec.ContainerEdits, byUUID, nil
}

func isPartition(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// toHost turns paths below the driver root as this process sees it into those of the host, which the container runtime
// reads.
func (n *Node) toHost(spec *specs.Spec) error {
	err := transformroot.New(
		transformroot.WithRoot(strings.TrimSuffix(n.driver.RootMount, "/")),
		transformroot.WithTargetRoot(n.driver.Root),
		transformroot.WithRelativeTo("host"),
	).Transform(spec)
	if err != nil {
		return fmt.Errorf("turn paths into the host's: %w", err)
	}
	return nil
}

// uuidNamer names a device by its UUID.
type uuidNamer struct{}

func (uuidNamer) GetDeviceName(_ int, d nvcdi.UUIDer) (string, error) {
	return d.GetUUID()
}

func (uuidNamer) GetMigDeviceName(_ int, _ nvcdi.UUIDer, _ int, d nvcdi.UUIDer) (string, error) {
	return d.GetUUID()
}
