package preflight

import (
	"context"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"aliquot.dev/aliquot/internal/gpu"
)

func TestHealthyNode(t *testing.T) {
	w := newWorld(t, "h100x8")
	w.check()
	w.golden("healthy", Run(t.Context(), w.Config))
	w.leavesNothing()
}

// leavesNothing checks that the directories have no file that was not there before.
func (w *world) leavesNothing() {
	w.Helper()
	for _, dir := range []string{w.DataDir, w.RunDir, w.CDIDir, w.RegistrarDir} {
		if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
			w.Errorf("left behind: %s", left)
		}
	}
}

func TestBrokenNode(t *testing.T) {
	w := newWorld(t, "t4x4")
	w.hardware.lacks["/dev/nvidia-uvm"] = true
	w.write("cdi/vendor.json", "{")
	w.fileSystems["run"] = unix.Statfs_t{Bavail: 1 << 30, Bsize: 4096}
	w.node.Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.7.24-0ubuntu1"
	w.updateNode()
	w.serverVersion("v1.36.3")
	w.golden("broken", Run(t.Context(), w.Config))
}

func (w *world) updateNode() {
	w.Helper()
	if _, err := w.client.CoreV1().Nodes().UpdateStatus(w.Context(), w.node, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func TestDriver(t *testing.T) {
	const root = "/run/nvidia/driver"
	for name, c := range map[string]struct {
		spoil func(*world)
		want  []string
	}{
		"NVML fails": {func(w *world) { w.hardware.err = errLoaded }, []string{"fail NVIDIA driver: initialise NVML: Driver Not Loaded"}},
		"NVML fails for want of a node": {func(w *world) {
			w.hardware.err = errLoaded
			w.remove("root/dev/nvidia2")
		}, []string{"fail NVIDIA driver: initialise NVML: Driver Not Loaded", "fail device nodes: /dev/nvidia2 of the GPU at 0000:02:00.0 is missing under " + root}},
		"no edits": {func(w *world) { w.hardware.noEdits = errors.New("find driver libraries:\nfailed\n") },
			[]string{"fail driver files: find driver libraries:; failed"}},
		"no libcuda": {func(w *world) { w.hardware.lacks["libcuda.so.580.95.05"] = true },
			[]string{"fail driver files: no libcuda.so under " + root + ": no program in a container can use CUDA"}},
		"no GPU": {func(w *world) {
			w.hardware.devices = nil
			w.remove("proc/driver")
		}, []string{"warn GPUs: none here"}},
		"a GPU does not answer": {func(w *world) {
			w.hardware.devices, w.hardware.skipped = w.hardware.devices[:3], []error{errors.New("GPU 3: open: GPU is lost")}
		}, []string{"fail GPUs: GPU 3: open: GPU is lost"}},
		"GPUs are ill": {func(w *world) {
			w.hardware.devices[0].Health.Faults = []gpu.Fault{{Severity: gpu.Fatal, Note: "reset it"}, {Severity: gpu.Informs, Note: "warm"}}
			w.hardware.devices[1].Health.Faults = []gpu.Fault{{Severity: gpu.Degraded, Note: "row"}}
		}, []string{"fail GPUs: gpu-0 (" + t4(0) + "): reset it", "warn GPUs: gpu-1 (" + t4(1) + "): row"}},
		"control nodes": {func(w *world) {
			w.hardware.lacks["/dev/nvidiactl"], w.hardware.lacks["/dev/nvidia-uvm-tools"] = true, true
		}, []string{"fail device nodes: /dev/nvidiactl is missing under " + root, "fail device nodes: /dev/nvidia-uvm-tools is missing under " + root}},
		"modeset is for graphics": {func(w *world) { w.hardware.lacks["/dev/nvidia-modeset"] = true }, nil},
		"a GPU's node": {func(w *world) { w.hardware.lacks["/dev/nvidia1"] = true },
			[]string{"fail device nodes: GPU " + t4(1) + " has none under " + root}},
		"a node of a GPU that NVML does not see": {func(w *world) {
			w.hardware.devices = w.hardware.devices[:3]
			w.remove("root/dev/nvidia3")
		}, []string{"fail device nodes: /dev/nvidia3 of the GPU at 0000:03:00.0 is missing under " + root}},
		"an excluded GPU needs none": {func(w *world) {
			w.hardware.devices = w.hardware.devices[:3]
			w.write("proc/driver/nvidia/gpus/0000:03:00.0/information", "Device Minor: \t 3\nGPU Excluded:\t Yes\n")
			w.remove("root/dev/nvidia3")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "t4x4")
			c.spoil(w)
			w.check(c.want...)
		})
	}
}

// t4 is the UUID of a GPU of fixture t4x4.
func t4(index int) string {
	devices, err := gpu.FromFile("../gpu/testdata/t4x4.yaml")
	if err != nil {
		panic(err)
	}
	return devices[index].UUID
}

func (w *world) remove(path string) {
	w.Helper()
	if err := os.RemoveAll(w.at(path)); err != nil {
		w.Fatal(err)
	}
}

func TestPartitions(t *testing.T) {
	w := newWorld(t, "h100x8")
	w.hardware.devices = w.hardware.devices[:1]
	w.hardware.devices[0].MIG.Enabled = true
	w.hardware.devices[0].MIG.Partitions = []gpu.Partition{{UUID: "MIG-1", Profile: "1g.10gb", Placement: gpu.Placement{Size: 1}}, {Profile: "half made"}}
	w.check()
	w.hardware.lacks["/dev/nvidia-caps/nvidia-cap13"] = true
	w.check("fail device nodes: partition MIG-1 lacks device nodes")
	w.hardware.lacks["/dev/nvidia-caps/nvidia-cap13"] = false
	w.remove("root/dev/nvidia-caps/nvidia-cap1")
	const none = "warn device nodes: no /dev/nvidia-caps under /run/nvidia/driver: MIG partitions of these GPUs cannot be used"
	w.check(none)
	w.hardware.devices[0].MIG = &gpu.MIG{} // what is only shared until it is reset needs none
	w.check()
	w.hardware.devices[0].MIG.Switchable = true
	w.check(none)
}

func TestInstalledFiles(t *testing.T) {
	foreign, us := elf.EM_AARCH64, machines[runtime.GOARCH]
	if us == foreign {
		foreign = elf.EM_X86_64
	}
	for name, spoil := range map[string]func(*world) (want string){
		"none": func(w *world) string {
			w.remove("data/lib")
			return "fail preload library: /data/lib/*/libaliquot.so is not there"
		},
		"foreign": func(w *world) string {
			return "fail preload library: /" + w.install("data/lib", "libaliquot.so", foreign) + " is for " + foreign.String() + ", the node is " + us.String()
		},
		"damaged": func(w *world) string {
			w.write("data/bin/0123456789abcdef/nvidia-cdi-hook", "")
			return "fail CDI hook: /data/bin/0123456789abcdef/nvidia-cdi-hook is damaged: the SHA-256 of its content begins with e3b0c44298fc1c14"
		},
		"not ELF": func(w *world) string {
			w.write("data/bin/e3b0c44298fc1c14/nvidia-cdi-hook", "")
			return "fail CDI hook: /data/bin/e3b0c44298fc1c14/nvidia-cdi-hook is no ELF file: EOF"
		},
		"not executable": func(w *world) string {
			path := w.install("data/bin", "nvidia-cdi-hook", us)
			w.chmod(path, 0o644)
			return "fail CDI hook: /" + path + " has mode 0644, want at least 0555"
		},
		"not for all to read": func(w *world) string {
			path := w.install("data/lib", "libaliquot.so", us)
			w.chmod(path, 0o700)
			return "fail preload library: /" + path + " has mode 0700, want at least 0444"
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "t4x4")
			w.check(spoil(w))
		})
	}
}

func (w *world) chmod(path string, mode fs.FileMode) {
	w.Helper()
	if err := os.Chmod(w.at(path), mode); err != nil {
		w.Fatal(err)
	}
}

func TestDirectories(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*world)
		want  string
	}{
		"missing": {func(w *world) { w.remove("run") }, "fail run directory: /run is not writable: no such file or directory"},
		"full":    {func(w *world) { w.fileSystems["data"] = unix.Statfs_t{Bavail: 100, Bsize: 4096} }, "warn data directory: /data has less than 16 MiB free"},
		"no inodes": {func(w *world) {
			w.fileSystems["cdi"] = unix.Statfs_t{Bavail: 1 << 30, Bsize: 4096, Files: 5000, Ffree: 999}
		},
			"warn CDI directory: /cdi has less than 1000 inodes free"},
		"not asked": {func(w *world) { delete(w.fileSystems, "registrar") }, "warn registrar: /registrar does not say what is free: no such file or directory"},
		"noexec": {func(w *world) {
			w.fileSystems["data"] = unix.Statfs_t{Bavail: 1 << 30, Bsize: 4096, Flags: unix.ST_NOEXEC}
		},
			"fail data directory: /data is mounted noexec: containers cannot map the preload library, nor the runtime run the CDI hook"},
		"on disk": {func(w *world) { w.fileSystems["run"] = unix.Statfs_t{Bavail: 1 << 30, Bsize: 4096} }, "warn run directory: /run is not on a tmpfs"},
		"cgroup v1": {func(w *world) { w.fileSystems["cgroup"] = unix.Statfs_t{Type: unix.TMPFS_MAGIC} },
			"warn cgroups: version 1: Aliquot needs nothing of version 2, but the kubelet of Kubernetes 1.37 does not start with version 1 unless it is told to"},
		"no cgroups": {func(w *world) { delete(w.fileSystems, "cgroup") }, "warn cgroups: /cgroup cannot be looked at: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "t4x4")
			c.spoil(w)
			w.check(c.want)
			w.leavesNothing()
		})
	}
}

func TestSpecs(t *testing.T) {
	const device = `{"cdiVersion": "0.6.0", "kind": "vendor.com/a", "devices": [{"name": "x", "containerEdits": {"env": ["A=B"]}}]}`
	w := newWorld(t, "t4x4")
	w.write("cdi/gpu.aliquot.dev-share_1.json", "")
	w.write("cdi/one.json", device)
	w.write("cdi/two.json", device)
	w.check(`fail CDI specs: failed to parse CDI Spec "/cdi/gpu.aliquot.dev-share_1.json": failed to unmarshal CDI Spec: EOF`,
		`warn CDI specs: conflicting device "vendor.com/a=x" (specs "/cdi/two.json", "/cdi/one.json")`)

	w = newWorld(t, "t4x4")
	runtimeDirs[len(runtimeDirs)-1] = "/etc/cdi"
	w.check("warn CDI specs: /cdi is not where container runtimes look by default")
}

func TestSockets(t *testing.T) {
	w := newWorld(t, "t4x4")
	w.Serves = func(_ context.Context, socket string) error { return errors.New("dial " + filepath.Base(socket)) }
	w.check("fail plugin: dial gpu.aliquot.dev-reg.sock")
	w.write("registrar/gpu.aliquot.dev-2-reg.sock", "")
	w.check("fail plugin: dial gpu.aliquot.dev-2-reg.sock; dial gpu.aliquot.dev-reg.sock")
	w.Serves = func(_ context.Context, socket string) error {
		if filepath.Base(socket) == "gpu.aliquot.dev-reg.sock" {
			return nil
		}
		return errors.New("an old one")
	}
	w.check()
	w.remove("registrar/gpu.aliquot.dev-2-reg.sock")
	w.remove("registrar/gpu.aliquot.dev-reg.sock")
	w.check("fail plugin: no socket /registrar/gpu.aliquot.dev*-reg.sock")
}

func TestVersions(t *testing.T) {
	for v, want := range map[string]Level{"v1.35.9": Fail, "v1.36.0": Warn, "v1.36.4-gke.12": Warn, "v1.37.0-rc.1": OK, "v1.37.2+k3s1": OK, "v1.40.0": OK, "none": Warn} {
		if got := apiServer(v); got.Level != want {
			t.Errorf("API server %s: %+v, want %s", v, got, want)
		}
	}
	for v, want := range map[string]Level{"v1.33.9": Fail, "v1.34.0": Warn, "v1.36.0": OK, "v1.37.2": OK, "": Warn} {
		if got := kubelet(v); got.Level != want {
			t.Errorf("kubelet %s: %+v, want %s", v, got, want)
		}
	}
	for v, want := range map[string]Level{
		"containerd://1.6.36": Fail, "containerd://1.7.1": Fail, "containerd://1.7.2": Warn, "containerd://1.7.24-0ubuntu0~22.04.1~gke1": Warn, "containerd://2.0.0-rc.1": OK, "containerd://2.3.0": OK,
		"containerd://2.4.2": OK, "containerd://v2.4.2": OK, "cri-o://1.27.8": Fail, "cri-o://1.37.0": OK, "docker://28.2.0": Warn, "containerd://unknown": Warn, "": Warn,
	} {
		if got := runtimeOf(v); got.Level != want {
			t.Errorf("runtime %s: %+v, want %s", v, got, want)
		}
	}
}

func TestClusterSaysWhatIsWrong(t *testing.T) {
	const none = "fail ResourceSlices: none with devices of this node: the scheduler knows of no GPU here"
	for name, c := range map[string]struct {
		spoil func(*world)
		want  []string
	}{
		"no client": {func(w *world) { w.Client, w.NoClient = nil, errors.New("not in a cluster") }, []string{"warn API server: not asked: not in a cluster"}},
		"no rights": {func(w *world) {
			w.client.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, kuberuntime.Object, error) {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "node-1", errors.New("no"))
			})
		}, []string{`fail API server: read node node-1: nodes "node-1" is forbidden: no`}},
		"a device plugin": {func(w *world) {
			w.DevicePlugin = func(*corev1.Node) string { return "nvidia.com/gpu" }
			w.unpublish()
		}, []string{"fail device plugin: one offers nvidia.com/gpu of this node: nothing is published, since GPUs would be given out twice"}},
		"a device plugin that is meant to be": {func(w *world) {
			w.DevicePlugin, w.BesideDevicePlugin = func(*corev1.Node) string { return "nvidia.com/gpu" }, true
		}, nil},
		"no slices":  {func(w *world) { w.unpublish() }, []string{none}},
		"no devices": {func(w *world) { w.unpublish(); w.publish(nil) }, []string{none}},
		"no slices, and no GPU that would be in them": {func(w *world) {
			w.unpublish()
			w.hardware.err = errLoaded
		}, []string{"fail NVIDIA driver: initialise NVML: Driver Not Loaded"}},
		"a new driver": {func(w *world) {
			w.hardware.devices = slices.Clone(w.hardware.devices)
			w.hardware.devices[0].DriverVersion = "590.44.01"
		}, []string{"warn ResourceSlices: published with driver 580.95.5, and the node has 590.44.1"}},
		"a gate is off": {func(w *world) {
			devices := w.unpublish()
			for i := range devices {
				devices[i].AllowMultipleAllocations = nil
			}
			w.publish(devices)
		}, []string{"fail ResourceSlices: the API server dropped fields: GPUs cannot be shared, each claim takes a whole one"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "t4x4")
			c.spoil(w)
			w.check(c.want...)
		})
	}
}

// unpublish removes the node's slice and returns its devices.
func (w *world) unpublish() []resourceapi.Device {
	w.Helper()
	slices := w.client.ResourceV1().ResourceSlices()
	slice, err := slices.Get(w.Context(), "slice", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if err := slices.Delete(w.Context(), "slice", metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	return slice.Spec.Devices
}
