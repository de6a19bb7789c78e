package cdi

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

var update = flag.Bool("update", false, "rewrite golden files")

const (
	uid    = "6f1c2d3e-0000-4000-8000-00000000c1a1"
	share1 = "aaaaaaaa-1111-4111-8111-111111111111"
	share2 = "bbbbbbbb-2222-4222-8222-222222222222"
	gpu0   = "GPU-4c8f1a20-6d3b-4e52-8f0a-1b7d90c5a100"
	gpu1   = "GPU-4c8f1a20-6d3b-4e52-8f0a-1b7d90c5a101"
	gi     = 1 << 30
)

var nodeLayout = Layout{
	SpecDir:     "/var/run/cdi",
	SharesDir:   "/run/aliquot/shares",
	Library:     "/var/lib/kubelet/plugins/gpu.aliquot.dev/lib/0123456789abcdef/libaliquot.so",
	PreloadList: "/var/lib/kubelet/plugins/gpu.aliquot.dev/lib/ld.so.preload",
}

// common is what the NVIDIA driver needs in each container, cut down to one thing of each kind.
var common = specs.ContainerEdits{
	Env:         []string{"NVIDIA_VISIBLE_DEVICES=void"},
	DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidiactl", HostPath: "/run/nvidia/driver/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}},
	Mounts:      []*specs.Mount{{HostPath: "/run/nvidia/driver/usr/lib/libcuda.so.1", ContainerPath: "/usr/lib/libcuda.so.1", Options: []string{"ro", "bind"}}},
}

// nvidia is what one GPU needs in a container.
func nvidia(minor int64) specs.ContainerEdits {
	path := "/dev/nvidia" + string(rune('0'+minor))
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: path, HostPath: "/run/nvidia/driver" + path, Type: "c", Major: 195, Minor: minor}}}
}

func share(request, id, gpu string, memory uint64) Device {
	return Device{Request: request, ID: id, Edits: nvidia(int64(gpu[len(gpu)-1] - '0')),
		Quota: &Quota{GPU: gpu, MemoryBytes: memory, CorePercent: 30, CorePolicy: "Fixed"}}
}

func whole(request, device string) Device {
	return Device{Request: request, ID: device, Edits: nvidia(1)}
}

func claimOf(devices ...Device) Claim {
	return Claim{UID: uid, Common: common, Devices: devices}
}

func TestRenderedSpecs(t *testing.T) {
	tests := map[string]Claim{
		"share":               claimOf(share("gpu", share1, gpu0, 10*gi)),
		"two-requests":        claimOf(share("small", share1, gpu0, 10*gi), share("big", share2, gpu0, 20*gi)),
		"whole":               claimOf(whole("gpu", "gpu-1")),
		"share-beside-whole":  claimOf(share("part", share1, gpu0, 10*gi), whole("all", "gpu-1")),
		"first-available-sub": claimOf(share("gpu/large", share1, gpu0, 10*gi)),
	}
	for name, claim := range tests {
		t.Run(name, func(t *testing.T) {
			spec, err := Render(claim, nodeLayout)
			if err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".golden.yaml")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWholeGPUHasNothingOfOurs(t *testing.T) {
	spec, err := Render(claimOf(whole("gpu", "gpu-1")), nodeLayout)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(spec.Devices)
	if err != nil {
		t.Fatal(err)
	}
	for _, ours := range []string{"ALIQUOT", "/run/aliquot", "ld.so.preload", quotaFile} {
		if strings.Contains(string(text), ours) {
			t.Errorf("the spec of a whole GPU has %s:\n%s", ours, text)
		}
	}
}

func TestRenderLeavesTheHardwaresEditsAlone(t *testing.T) {
	edits := specs.ContainerEdits{Env: make([]string, 0, 8), Mounts: make([]*specs.Mount, 0, 8), DeviceNodes: nvidia(0).DeviceNodes}
	first, second := share("gpu", share1, gpu0, gi), share("gpu", share2, gpu0, gi)
	first.Edits, second.Edits = edits, edits
	spec, err := Render(claimOf(first, second), nodeLayout)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := spec.Devices[0].ContainerEdits, spec.Devices[1].ContainerEdits; a.Env[0] == b.Env[0] || a.Mounts[2].HostPath == b.Mounts[2].HostPath {
		t.Errorf("two shares of one GPU overwrite each other: %v, %v", a.Env, b.Env)
	}
}

// TestTwoClaimsInOneContainer lets the runtime's own cache inject two claims of one GPU: both limits must be there.
func TestTwoClaimsInOneContainer(t *testing.T) {
	layout := layoutIn(t.TempDir())
	store := newStore(t, layout)
	first, second := claimOf(share("gpu", share1, gpu0, 10*gi)), claimOf(share("gpu", share2, gpu0, 20*gi))
	second.UID = "second-" + uid
	for _, claim := range []Claim{first, second} {
		if err := store.WriteSpec(claim); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(layout.SpecDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	container := &oci.Spec{Process: &oci.Process{Env: []string{"PATH=/bin"}}}
	if _, err := cache.InjectDevices(container, QualifiedName(first.UID, first.Devices[0]), QualifiedName(second.UID, second.Devices[0])); err != nil {
		t.Fatal(err)
	}
	wantEnv := []string{
		"ALIQUOT_SHARE_aaaaaaaa=" + gpu0 + ",memory=10737418240,cores=30",
		"ALIQUOT_SHARE_bbbbbbbb=" + gpu0 + ",memory=21474836480,cores=30",
		"NVIDIA_VISIBLE_DEVICES=void",
		"PATH=/bin",
	}
	slices.Sort(container.Process.Env)
	if diff := cmp.Diff(wantEnv, container.Process.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	var mounts []string
	for _, m := range container.Mounts {
		mounts = append(mounts, m.Destination)
	}
	slices.Sort(mounts)
	inside := "/run/aliquot/shares/" + gpu0 + "."
	wantMounts := []string{
		"/etc/ld.so.preload",
		ContainerLibrary,
		inside + share1 + "/agent", inside + share1 + "/quota", inside + share1 + "/usage",
		inside + share2 + "/agent", inside + share2 + "/quota", inside + share2 + "/usage",
		"/usr/lib/libcuda.so.1",
	}
	if diff := cmp.Diff(wantMounts, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if n := len(container.Linux.Devices); n != 2 {
		t.Errorf("the container has %d device nodes, want nvidiactl and nvidia0 once each: %v", n, container.Linux.Devices)
	}
	for _, m := range container.Mounts {
		if writable := slices.Contains(m.Options, "rw"); writable != strings.HasSuffix(m.Destination, "/usage") {
			t.Errorf("mount %s has options %v", m.Destination, m.Options)
		}
	}
}

// hostileNames are what a name could be if the API let it through.
var hostileNames = map[string]string{
	"parent": "../x", "parent inside": "a/../b", "dot": ".", "dots": "..", "empty": "", "newline": "a\nb", "newline at the end": "a\n",
	"too long": strings.Repeat("a", 101), "absolute": "/etc", "space": "a b", "zero byte": "a\x00b", "no ASCII": "ä", "hidden": ".a", "equals": "a=b",
}

func TestHostileNamesAreRefusedAndNothingIsWritten(t *testing.T) {
	places := map[string]func(*Claim, string){
		"UID":         func(c *Claim, name string) { c.UID = name },
		"request":     func(c *Claim, name string) { c.Devices[0].Request = name },
		"subrequest":  func(c *Claim, name string) { c.Devices[0].Request = "gpu/" + name },
		"shareID":     func(c *Claim, name string) { c.Devices[0].ID = name },
		"GPU":         func(c *Claim, name string) { c.Devices[0].Quota.GPU = name },
		"core policy": func(c *Claim, name string) { c.Devices[0].Quota.CorePolicy = name },
	}
	for place, set := range places {
		for kind, name := range hostileNames {
			t.Run(place+" "+kind, func(t *testing.T) {
				claim := claimOf(share("gpu", share1, gpu0, gi))
				set(&claim, name)
				refused(t, claim, "is not a name")
			})
		}
	}
}

func TestClaimsThatMeanTwoThingsAreRefused(t *testing.T) {
	tests := map[string]struct {
		claim   Claim
		wantErr string
	}{
		"no device":            {claim: claimOf(), wantErr: "claim " + uid + " has no device"},
		"the same twice":       {claim: claimOf(whole("gpu", "gpu-1"), whole("gpu", "gpu-1")), wantErr: "two devices are named " + uid + "_gpu_gpu-1"},
		"one share's files":    {claim: claimOf(share("a", share1, gpu0, gi), share("b", share1, gpu0, gi)), wantErr: "two devices are named " + gpu0 + "." + share1},
		"subrequest or dotted": {claim: claimOf(whole("a/b", "gpu-1"), whole("a.b", "gpu-1")), wantErr: "two devices are named"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { refused(t, tc.claim, tc.wantErr) })
	}
}

// refused checks that no way to write a claim writes anything.
func refused(t *testing.T, claim Claim, wantErr string) {
	t.Helper()
	root := t.TempDir()
	store := newStore(t, layoutIn(root))
	for call, err := range map[string]error{"WriteSpec": store.WriteSpec(claim), "WriteShares": store.WriteShares(claim), "Validate": claim.Validate()} {
		if err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: got error %v, want %q", call, err, wantErr)
		}
	}
	if left := tree(t, root); len(left) > 0 {
		t.Errorf("something was written: %v", left)
	}
}

func layoutIn(root string) Layout {
	layout := nodeLayout
	layout.SpecDir, layout.SharesDir = filepath.Join(root, "cdi"), filepath.Join(root, "shares")
	return layout
}

func newStore(t testing.TB, layout Layout) *Store {
	t.Helper()
	store, err := NewStore(layout)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// tree lists all files and directories below root.
func tree(t testing.TB, root string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if path != root {
			paths = append(paths, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
