package preflight

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/internal/gpu"
)

const lookAtDriver = "run nvidia-smi on the node: what it says of the driver is wrong here too"

// hardware checks the NVIDIA driver and its GPUs, and returns those that answer.
func (c Config) hardware() ([]gpu.Device, []Finding) {
	const check = "NVIDIA driver"
	devices, skipped, err := c.Hardware.Devices()
	if err != nil {
		return nil, append([]Finding{fail(check, cmp.Or(c.Hardware.Remedy(err), lookAtDriver), "%v", err)}, c.kernelNodes()...)
	}
	findings := []Finding{ok(check, "NVML answers")}
	if len(devices) > 0 {
		findings[0] = ok(check, "version %s, CUDA %s", devices[0].DriverVersion, devices[0].CUDADriverVersion)
	}
	findings = append(findings, c.gpus(devices, skipped)...)
	common, byUUID, err := c.Hardware.Edits(visible(devices))
	if err != nil {
		return devices, append(findings, fail("driver files", cmp.Or(c.Hardware.Remedy(err), lookAtDriver), "%v", err))
	}
	findings = append(findings, c.driverFiles(common))
	return devices, append(findings, c.nodes(devices, common, byUUID)...)
}

// gpus tells of GPUs, of those that do not answer, and of what is wrong with the others.
func (c Config) gpus(devices []gpu.Device, skipped []error) []Finding {
	const check = "GPUs"
	var products []string
	count := map[string]int{}
	for _, d := range devices {
		if count[d.ProductName]++; count[d.ProductName] == 1 {
			products = append(products, d.ProductName)
		}
	}
	for i, product := range products {
		products[i] = fmt.Sprintf("%d x %s", count[product], product)
	}
	var findings []Finding
	if len(devices) > 0 {
		findings = append(findings, ok(check, "%s", strings.Join(products, ", ")))
	} else if len(skipped) == 0 {
		findings = append(findings, warn(check, "if the node has GPUs, look for them with lspci and at the driver's messages with dmesg; else keep the plugin off it (kubeletPlugin.affinity)", "none here"))
	}
	for _, reason := range skipped {
		remedy := cmp.Or(c.Hardware.Remedy(reason), "look at dmesg for what is wrong with the GPU; drain its pods, then reset it (nvidia-smi -r) or reboot the node")
		findings = append(findings, fail(check, remedy, "%v", reason))
	}
	for _, d := range devices {
		for _, fault := range d.Health.Faults {
			const remedy = "see what NVIDIA says of it (nvidia-smi -q, dmesg); drain the GPU's pods and reset it, or replace it"
			switch fault.Severity {
			case gpu.Fatal:
				findings = append(findings, fail(check, remedy, "%s (%s): %s", d.Name(), d.UUID, fault.Note))
			case gpu.Degraded:
				findings = append(findings, warn(check, remedy, "%s (%s): %s", d.Name(), d.UUID, fault.Note))
			}
		}
	}
	return findings
}

// visible are the UUIDs of all that containers can be given now: of a GPU in MIG mode its partitions.
func visible(devices []gpu.Device) (uuids []string) {
	for _, d := range devices {
		uuids = append(uuids, d.Visible()...)
	}
	return uuids
}

// driverFiles looks for CUDA's own library: the toolkit, which finds the driver by NVML's, leaves out what it misses.
func (c Config) driverFiles(common specs.ContainerEdits) Finding {
	const check = "driver files"
	for _, mount := range common.Mounts {
		if strings.HasPrefix(filepath.Base(mount.ContainerPath), "libcuda.so.") {
			return ok(check, "%s and %d more", mount.HostPath, len(common.Mounts)-1)
		}
	}
	return fail(check, "install the driver's compute libraries (libcuda1, nvidia-driver-cuda-libs or the like) in the version of its kernel module, or set nvidiaDriverRoot to where they are",
		"no libcuda.so under %s: no program in a container can use CUDA", c.Root)
}

// control are the device nodes that every CUDA program opens, and what makes each.
var control = []struct{ path, remedy string }{
	{"/dev/nvidiactl", "nvidia-smi"},
	{"/dev/nvidia-uvm", "nvidia-modprobe -u -c 0"},
	{"/dev/nvidia-uvm-tools", "nvidia-modprobe -u -c 0"},
}

// nodes checks the device nodes. The toolkit looks for them below the driver root and leaves out those that are missing: a
// container without them starts, and CUDA fails in it.
func (c Config) nodes(devices []gpu.Device, common specs.ContainerEdits, byUUID map[string]specs.ContainerEdits) []Finding {
	const check = "device nodes"
	var found []string
	var findings []Finding
	for _, node := range control {
		if has(common, node.path) {
			found = append(found, filepath.Base(node.path))
		} else {
			findings = append(findings, fail(check, c.makeNode(node.remedy), "%s is missing under %s", node.path, c.Root))
		}
	}
	findings = append(findings, c.kernelNodes()...)
	for _, uuid := range visible(devices) {
		nodes := named(byUUID[uuid], gpuNode)
		found = append(found, nodes...)
		switch partition := strings.HasPrefix(uuid, "MIG-"); {
		case partition && (len(nodes) == 0 || len(named(byUUID[uuid], capability)) < 2): // of the GPU instance and the compute instance
			findings = append(findings, fail(check, c.makeNode(makeCapabilities), "partition %s lacks device nodes", uuid))
		case !partition && len(nodes) == 0:
			findings = append(findings, fail(check, c.makeNode("nvidia-smi"), "GPU %s has none under %s", uuid, c.Root))
		}
	}
	findings = append(findings, c.capabilities(devices)...)
	if len(findings) == 0 {
		return []Finding{ok(check, "%s", strings.Join(slices.Compact(found), ", "))}
	}
	return findings
}

func has(edits specs.ContainerEdits, path string) bool {
	return slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == path })
}

// named are the base names of the device nodes that match a pattern.
func named(edits specs.ContainerEdits, pattern *regexp.Regexp) (names []string) {
	for _, node := range edits.DeviceNodes {
		if pattern.MatchString(node.Path) {
			names = append(names, filepath.Base(node.Path))
		}
	}
	return names
}

var (
	gpuNode    = regexp.MustCompile(`^/dev/nvidia\d+$`)
	capability = regexp.MustCompile(`^/dev/nvidia-caps/`)
)

// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
const makeCapabilities = "nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/config -f /proc/driver/nvidia/capabilities/mig/monitor"

func (c Config) makeNode(program string) string {
	where := ""
	if c.Root != "/" {
		where = ", in the driver container if there is one"
	}
	return fmt.Sprintf("run `%s` as root on the node%s", program, where)
}

// kernelNodes checks that what the kernel module drives has a device node. NVML does not see a GPU that has none.
func (c Config) kernelNodes() (findings []Finding) {
	files, _ := filepath.Glob(filepath.Join(c.Proc, "driver/nvidia/gpus/*/information")) // the pattern is right
	for _, file := range files {
		minor, excluded := information(file)
		if minor == "" || excluded {
			continue
		}
		path := "/dev/nvidia" + minor
		if _, err := os.Stat(filepath.Join(c.RootMount, path)); err != nil {
			findings = append(findings, fail("device nodes", c.makeNode("nvidia-modprobe -c "+minor),
				"%s of the GPU at %s is missing under %s", path, filepath.Base(filepath.Dir(file)), c.Root))
		}
	}
	return findings
}

// information reads what the kernel module says of a GPU: lines such as "Device Minor: 	 0" and "GPU Excluded:	 No".
func information(file string) (minor string, excluded bool) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); key {
		case "Device Minor":
			minor = value
		case "GPU Excluded":
			excluded = value == "Yes"
		}
	}
	return minor, excluded
}

// capabilities checks that the nodes through which containers use MIG partitions are made on this node.
func (c Config) capabilities(devices []gpu.Device) []Finding {
	if !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.MIG != nil && (d.MIG.Enabled || d.MIG.Switchable) }) {
		return nil
	}
	if nodes, _ := filepath.Glob(filepath.Join(c.RootMount, "dev/nvidia-caps/nvidia-cap*")); len(nodes) > 0 {
		return nil
	}
	return []Finding{warn("device nodes", c.makeNode(makeCapabilities), "no /dev/nvidia-caps under %s: MIG partitions of these GPUs cannot be used", c.Root)}
}
