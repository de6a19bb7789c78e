// Package nvml says which GPUs this node has, how they fare and what their driver needs in a container. It is
// the only package that touches go-nvml and so the only one that needs cgo. It decides nothing about shares.
package nvml

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"aliquot.dev/aliquot/internal/gpu"
)

// Node reads the GPUs of a node from its NVIDIA driver. Each call opens NVML anew, so that a driver which came late is
// found without a restart, and none is kept from being unloaded.
type Node struct {
	driver Driver
	sysfs  []deviceattribute.MachineModifier

	mu        sync.Mutex
	monitors  []*Monitor
	watches   []*Watch
	libraries map[string]nvml.Interface // by path
}

// Driver is where the NVIDIA driver's files are.
type Driver struct {
	Root      string // on the host, "/" or for instance "/run/nvidia/driver"
	RootMount string // where this process sees Root
	CDIHook   string // the program nvidia-cdi-hook, on the host
}

// New returns a node that reads the driver's files when it is asked.
func New(driver Driver) *Node {
	return &Node{driver: driver}
}

// libraryPaths are where distributions put libnvidia-ml.so.1, relative to the driver root.
var libraryPaths = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib",
}

var errNotFound = errors.New("is the NVIDIA driver installed there? Set nvidiaDriverRoot to where it is")

// library finds NVML under the driver root. All who use one file share its interface, which counts them: go-nvml keeps what
// it looked up in variables of its package, and sets them under the lock of the interface that is opened or closed.
func (n *Node) library() (nvml.Interface, error) {
	for _, dir := range libraryPaths {
		matches, err := filepath.Glob(filepath.Join(n.driver.RootMount, dir, "libnvidia-ml.so.1"))
		if err == nil && len(matches) > 0 {
			return n.shared(matches[0]), nil
		}
	}
	return nil, fmt.Errorf("find libnvidia-ml.so.1 under driver root %s (seen at %s): %w",
		n.driver.Root, n.driver.RootMount, errNotFound)
}

func (n *Node) shared(path string) nvml.Interface {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.libraries == nil {
		n.libraries = map[string]nvml.Interface{}
	}
	if n.libraries[path] == nil {
		n.libraries[path] = nvml.New(nvml.WithLibraryPath(path))
	}
	return n.libraries[path]
}

func (n *Node) forget(lib nvml.Interface) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.libraries, func(_ string, known nvml.Interface) bool { return known == lib })
}

// open starts NVML; close ends it.
func (n *Node) open() (lib nvml.Interface, shutdown func(), err error) {
	lib, err = n.library()
	if err != nil {
		return nil, nil, err
	}
	if ret := lib.Init(); ret != nvml.SUCCESS {
		n.forget(lib) // it counts the failed start, and would keep the file that it has loaded
		return nil, nil, fmt.Errorf("initialise NVML: %w", ret)
	}
	return lib, func() { _ = lib.Shutdown() }, nil
}

// Devices lists the GPUs that answer, in NVML's order. A GPU that does not answer is left out and has an entry in
// skipped; an error means that none could be asked.
func (n *Node) Devices() (devices []gpu.Device, skipped []error, err error) {
	lib, shutdown, err := n.open()
	if err != nil {
		return nil, nil, err
	}
	defer shutdown()
	versions, err := driverVersions(lib)
	if err != nil {
		return nil, nil, err
	}
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("count GPUs: %w", ret)
	}
	nvlib := device.New(lib)
	for i := range count {
		d, err := n.read(lib, nvlib, i)
		if err != nil {
			skipped = append(skipped, skip(i, err))
			continue
		}
		d.DriverVersion, d.CUDADriverVersion = versions.driver, versions.cuda
		devices = append(devices, d)
	}
	return devices, skipped, nil
}

func skip(index int, err error) error {
	wrapped := fmt.Errorf("GPU %d: %w", index, err)
	if errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		return gpu.LostError(index, wrapped)
	}
	return wrapped
}

type versions struct{ driver, cuda string }

func driverVersions(lib nvml.Interface) (versions, error) {
	driver, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return versions{}, fmt.Errorf("read driver version: %w", ret)
	}
	cuda, ret := lib.SystemGetCudaDriverVersion_v2()
	if ret != nvml.SUCCESS {
		return versions{}, fmt.Errorf("read CUDA driver version: %w", ret)
	}
	return versions{driver: driver, cuda: fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)}, nil
}

func (n *Node) read(lib nvml.Interface, nvlib device.Interface, index int) (gpu.Device, error) {
	handle, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return gpu.Device{}, fmt.Errorf("open: %w", ret)
	}
	d := gpu.Device{Index: index}
	if d.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
		return gpu.Device{}, fmt.Errorf("read UUID: %w", ret)
	}
	if d.ProductName, ret = handle.GetName(); ret != nvml.SUCCESS {
		return gpu.Device{}, fmt.Errorf("read name: %w", ret)
	}
	memory, ret := handle.GetMemoryInfo_v2()
	if ret != nvml.SUCCESS {
		return gpu.Device{}, fmt.Errorf("read memory: %w", ret)
	}
	d.MemoryTotal, d.MemoryReserved = memory.Total, memory.Reserved
	mig, err := migOf(nvlib, handle, memory.Total)
	if err != nil {
		return gpu.Device{}, err
	}
	d.MIG = mig
	if d.Health, err = healthOf(handle); err != nil {
		return gpu.Device{}, err
	}
	described, err := nvlib.NewDevice(handle)
	if err != nil {
		return gpu.Device{}, fmt.Errorf("describe: %w", err)
	}
	return d, n.describe(&d, described)
}

// describe fills in what a claim may select by. A GPU without a PCI address of its own is still a GPU.
func (n *Node) describe(d *gpu.Device, described device.Device) (err error) {
	if d.Architecture, err = described.GetArchitectureAsString(); err != nil {
		return fmt.Errorf("read architecture: %w", err)
	}
	if d.Brand, err = described.GetBrandAsString(); err != nil {
		return fmt.Errorf("read brand: %w", err)
	}
	if d.ComputeCapability, err = described.GetCudaComputeCapabilityAsString(); err != nil {
		return fmt.Errorf("read compute capability: %w", err)
	}
	busID, err := described.GetPCIBusID()
	if err != nil {
		return nil
	}
	d.PCIBusID = strings.ToLower(busID)
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(d.PCIBusID, n.sysfs...); err == nil {
		d.PCIeRoot = *root.Value.StringValue
	}
	if node, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(d.PCIBusID, deviceattribute.ScalarAttribute, n.sysfs...); err == nil {
		numa := int(*node.Value.IntValue)
		d.NUMANode = &numa
	}
	return nil
}
