package cdi

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

var envLine = regexp.MustCompile(`^ALIQUOT_SHARE_[A-Za-z0-9._-]{1,8}=[A-Za-z0-9._-]+,memory=[0-9]+,cores=-?[0-9]+$`)

// FuzzClaim takes a claim's names from anywhere: what is not refused stays in its directories, and can be removed.
func FuzzClaim(f *testing.F) {
	f.Add(uid, "gpu", share1, gpu0, "Fixed", uint64(gi), 30)
	f.Add(uid, "gpu/large", "gpu-0", "MIG-0", "Burst", uint64(0), 0)
	for _, name := range hostileNames {
		f.Add(name, name, name, name, name, uint64(gi), -1)
		f.Add(uid, "gpu/"+name, share1, gpu0, "Fixed", uint64(gi), 30)
	}
	root := f.TempDir()
	layout := layoutIn(root)
	store := newStore(f, layout)
	f.Fuzz(func(t *testing.T, claimUID, request, id, gpu, policy string, memory uint64, cores int) {
		device := Device{Request: request, ID: id, Edits: nvidia(0), Quota: &Quota{GPU: gpu, MemoryBytes: memory, CorePercent: cores, CorePolicy: policy}}
		claim := Claim{UID: claimUID, Devices: []Device{device}}
		spec, err := Render(claim, layout)
		if err != nil {
			if left := files(t, root); len(left) > 0 {
				t.Fatalf("refused, but there is %v", left)
			}
			return
		}
		if err := parser.ValidateDeviceName(spec.Devices[0].Name); err != nil {
			t.Errorf("no runtime takes the name: %v", err)
		}
		if env := spec.Devices[0].ContainerEdits.Env; len(env) != 1 || !envLine.MatchString(env[0]) {
			t.Errorf("environment %q", env)
		}
		if text := string(device.Quota.text()); strings.Count(text, "\n") != 6 || strings.Count(text, " ") != 6 {
			t.Errorf("quota is not six keys with their values:\n%s", text)
		}
		for _, err := range []error{store.WriteSpec(claim), store.WriteShares(claim)} {
			if err != nil {
				t.Errorf("accepted, but cannot be written: %v", err)
			}
		}
		dir := "shares/" + claimUID + "/" + gpu + "." + id
		want := []string{"cdi/gpu.aliquot.dev-share_" + claimUID + ".json", dir + "/agent", dir + "/quota", dir + "/usage"}
		if got := files(t, root); !slices.Equal(got, want) {
			t.Errorf("files are %v, want %v", got, want)
		}
		for _, m := range spec.Devices[0].ContainerEdits.Mounts[2:] {
			if filepath.Dir(m.HostPath) != root+"/"+dir || filepath.Dir(m.ContainerPath) != "/run/aliquot/shares/"+gpu+"."+id {
				t.Errorf("mount %s at %s", m.HostPath, m.ContainerPath)
			}
		}
		for _, err := range []error{store.RemoveSpec(claimUID), store.RemoveShares(claimUID)} {
			if err != nil {
				t.Errorf("accepted, but cannot be removed: %v", err)
			}
		}
		if left := files(t, root); len(left) > 0 {
			t.Errorf("not removed: %v", left)
		}
	})
}

// files are the leaves of a tree, sorted.
func files(t *testing.T, root string) []string {
	paths := tree(t, root)
	return slices.DeleteFunc(paths, func(path string) bool { return stat(t, filepath.Join(root, path)).IsDir() })
}
