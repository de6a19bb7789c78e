package preflight

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	discovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

var update = flag.Bool("update", false, "rewrite golden files")

// fakeHardware is a driver that has all it needs until a test takes something away.
type fakeHardware struct {
	devices []gpu.Device
	skipped []error
	err     error
	noEdits error
	lacks   map[string]bool // paths of files and device nodes
}

func (h *fakeHardware) Devices() ([]gpu.Device, []error, error) { return h.devices, h.skipped, h.err }

func (h *fakeHardware) Edits(uuids []string) (specs.ContainerEdits, map[string]specs.ContainerEdits, error) {
	var common specs.ContainerEdits
	for _, library := range []string{"libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05"} {
		if path := "/usr/lib/x86_64-linux-gnu/" + library; !h.lacks[library] {
			common.Mounts = append(common.Mounts, &specs.Mount{HostPath: "/run/nvidia/driver" + path, ContainerPath: path})
		}
	}
	common.DeviceNodes = h.nodes("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-uvm", "/dev/nvidiactl")
	byUUID := map[string]specs.ContainerEdits{}
	for i, uuid := range uuids {
		nodes := []string{fmt.Sprintf("/dev/nvidia%d", i)}
		if strings.HasPrefix(uuid, "MIG-") {
			nodes = append(nodes, "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
		}
		byUUID[uuid] = specs.ContainerEdits{DeviceNodes: h.nodes(nodes...)}
	}
	return common, byUUID, h.noEdits
}

func (h *fakeHardware) nodes(paths ...string) (nodes []*specs.DeviceNode) {
	for _, path := range paths {
		if !h.lacks[path] {
			nodes = append(nodes, &specs.DeviceNode{Path: path})
		}
	}
	return nodes
}

var errLoaded = errors.New("initialise NVML: Driver Not Loaded")

func (h *fakeHardware) Remedy(err error) string {
	if errors.Is(err, errLoaded) {
		return "load it"
	}
	return ""
}

// world is a node that has nothing wrong with it.
type world struct {
	*testing.T
	Config
	dir         string
	hardware    *fakeHardware
	client      *fake.Clientset
	node        *corev1.Node
	fileSystems map[string]unix.Statfs_t // by path below dir
	version     string                   // of what was installed last
}

func newWorld(t *testing.T, fixture string) *world {
	t.Helper()
	devices, err := gpu.FromFile("../gpu/testdata/" + fixture + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := &world{T: t, dir: dir, hardware: &fakeHardware{devices: devices, lacks: map[string]bool{}}}
	w.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "containerd://2.4.2"},
	}}
	w.client = fake.NewClientset(w.node)
	w.serverVersion("v1.37.2")
	w.publish(inventory.Resources("node-1", devices, nil).Pools[inventory.PoolName("node-1")].Slices[0].Devices)
	w.fileSystems = map[string]unix.Statfs_t{
		"data": {Bavail: 1 << 30, Bsize: 4096}, "registrar": {Bavail: 1 << 30, Bsize: 4096}, "cdi": {Bavail: 1 << 30, Bsize: 4096},
		"run": {Type: unix.TMPFS_MAGIC, Bavail: 1 << 20, Bsize: 4096, Files: 1 << 20, Ffree: 1 << 20}, "cgroup": {Type: unix.CGROUP2_SUPER_MAGIC},
	}
	w.Config = Config{
		NodeName: "node-1", Hardware: w.hardware, Root: "/run/nvidia/driver", RootMount: w.at("root"),
		DataDir: w.at("data"), RegistrarDir: w.at("registrar"), CDIDir: w.at("cdi"), RunDir: w.at("run"), Proc: w.at("proc"), Cgroup: w.at("cgroup"),
		Client: w.client, Serves: func(context.Context, string) error { return nil }, DevicePlugin: func(*corev1.Node) string { return "" },
		fileSystem: func(path string) (unix.Statfs_t, error) {
			stat, ok := w.fileSystems[strings.TrimPrefix(path, dir+"/")]
			if !ok {
				return stat, unix.ENOENT
			}
			return stat, nil
		},
	}
	runtimeDirs = append(runtimeDirs, w.CDIDir)
	t.Cleanup(func() { runtimeDirs = runtimeDirs[:len(runtimeDirs)-1] })
	w.write("run/shares", "")
	w.write("registrar/gpu.aliquot.dev-reg.sock", "")
	w.write("root/dev/nvidia-caps/nvidia-cap1", "")
	w.write("cdi/nvidia.yaml", "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: [{name: all, containerEdits: {env: [A=B]}}]\n")
	w.install("data/lib", "libaliquot.so", machines[runtime.GOARCH])
	w.install("data/bin", "nvidia-cdi-hook", machines[runtime.GOARCH])
	for i := range devices {
		w.write(fmt.Sprintf("root/dev/nvidia%d", i), "")
		w.write(fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", i), fmt.Sprintf(
			"Model: \t\t NVIDIA\nIRQ:   \t\t 42\nGPU UUID: \t %s\nBus Location: \t 0000:%02x:00.0\nDevice Minor: \t %d\nGPU Excluded:\t No\n", devices[i].UUID, i, i))
	}
	return w
}

func (w *world) at(path string) string { return filepath.Join(w.dir, path) }

func (w *world) write(path, content string) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(w.at(path)), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.at(path), []byte(content), 0o755); err != nil {
		w.Fatal(err)
	}
}

// install puts the smallest ELF file for a machine where driver.Install would, and returns its path.
func (w *world) install(dir, name string, machine elf.Machine) string {
	w.Helper()
	header := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Ehsize: 64}
	copy(header.Ident[:], "\x7fELF\x02\x01\x01")
	var content bytes.Buffer
	if err := binary.Write(&content, binary.LittleEndian, header); err != nil {
		w.Fatal(err)
	}
	w.version = fmt.Sprintf("%x", sha256.Sum256(content.Bytes()))[:16]
	path := filepath.Join(dir, w.version, name)
	w.write(path, content.String())
	return path
}

func (w *world) serverVersion(v string) {
	w.client.Discovery().(*discovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: v}
}

// publish stores a slice of the node's.
func (w *world) publish(devices []resourceapi.Device) {
	w.Helper()
	node := "node-1"
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"},
		Spec: resourceapi.ResourceSliceSpec{NodeName: &node, Driver: v1alpha1.DriverName, Devices: devices}}
	if _, err := w.client.ResourceV1().ResourceSlices().Create(w.Context(), slice, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// bad are the findings that are not ok, "level check: found", with the world's own directory left out.
func (w *world) bad() []string {
	w.Helper()
	var all []string
	for _, f := range Run(w.Context(), w.Config).Findings {
		if f.Level == OK {
			continue
		}
		if f.Remedy == "" {
			w.Errorf("no remedy: %+v", f)
		}
		all = append(all, w.plain(fmt.Sprintf("%s %s: %s", f.Level, f.Check, f.Found)))
	}
	return all
}

func (w *world) plain(text string) string {
	return strings.ReplaceAll(text, w.dir, "")
}

// check compares what is bad.
func (w *world) check(want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.bad()); diff != "" {
		w.Errorf("findings (-want +got):\n%s", diff)
	}
}

// golden compares a report as it is written with a file.
func (w *world) golden(name string, report Report) {
	w.Helper()
	var text, program bytes.Buffer
	if err := errors.Join(report.Text(&text), report.JSON(&program)); err != nil {
		w.Fatal(err)
	}
	for extension, got := range map[string]string{"txt": text.String(), "json": program.String()} {
		got = strings.ReplaceAll(w.plain(got), w.version, "0123456789abcdef") // it depends on the machine
		file := filepath.Join("testdata", name+".golden."+extension)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				w.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			w.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			w.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}
