package cdi

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestShareFilesAsContainersNeedThem(t *testing.T) {
	for name, umask := range map[string]int{"open umask": 0, "closed umask": 0o077} {
		t.Run(name, func(t *testing.T) {
			before := unix.Umask(umask)
			defer unix.Umask(before)
			layout, claim := layoutIn(t.TempDir()), claimOf(share("gpu", share1, gpu0, 10*gi))
			if err := newStore(t, layout).WriteShares(claim); err != nil {
				t.Fatal(err)
			}
			dir := layout.ShareDir(uid, claim.Devices[0])
			for file, want := range map[string]struct {
				mode os.FileMode
				size int64
			}{quotaFile: {0o644, int64(len(claim.Devices[0].Quota.text()))}, agentFile: {0o644, 4096}, usageFile: {0o666, 4096 + 512*256}} {
				info, err := os.Stat(filepath.Join(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				if info.Mode() != want.mode || info.Size() != want.size {
					t.Errorf("%s has mode %v and %d bytes, want %v and %d", file, info.Mode(), info.Size(), want.mode, want.size)
				}
			}
		})
	}
}

func TestReplayKeepsWhatContainersHaveMounted(t *testing.T) {
	layout, claim := layoutIn(t.TempDir()), claimOf(share("gpu", share1, gpu0, 10*gi))
	store, dir := newStore(t, layout), layout.ShareDir(uid, claim.Devices[0])
	if err := store.WriteShares(claim); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{usageFile, agentFile} {
		write(t, filepath.Join(dir, file), "what a container wrote")
	}
	before := map[string]os.FileInfo{}
	for _, file := range []string{usageFile, agentFile, quotaFile} {
		before[file] = stat(t, filepath.Join(dir, file))
	}
	if err := store.WriteShares(claim); err != nil {
		t.Fatal(err)
	}
	for file, info := range before {
		if !os.SameFile(info, stat(t, filepath.Join(dir, file))) {
			t.Errorf("%s is another file after a replay", file)
		}
	}
	for _, file := range []string{usageFile, agentFile} {
		if got := read(t, filepath.Join(dir, file)); got != "what a container wrote" {
			t.Errorf("%s was written again: %.30q", file, got)
		}
	}
}

func TestReplayRepairsTheQuota(t *testing.T) {
	layout, claim := layoutIn(t.TempDir()), claimOf(share("gpu", share1, gpu0, 10*gi))
	store, quota := newStore(t, layout), filepath.Join(layout.ShareDir(uid, claim.Devices[0]), quotaFile)
	damages := []struct {
		name string
		do   func() error
	}{
		{"not there yet", func() error { return nil }},
		{"changed", func() error { return os.WriteFile(quota, []byte("version 1\nmemory_bytes 99999999999\n"), 0o644) }},
		{"torn", func() error { return os.Truncate(quota, 10) }},
		{"emptied", func() error { return os.Truncate(quota, 0) }},
		{"removed", func() error { return os.Remove(quota) }},
	}
	for _, damage := range damages {
		if err := damage.do(); err != nil {
			t.Fatal(err)
		}
		if err := store.WriteShares(claim); err != nil {
			t.Fatal(err)
		}
		want := "version 1\ngpu " + gpu0 + "\nmemory_bytes 10737418240\ncore_percent 30\ncore_policy Fixed\npriority 0\n"
		if diff := cmp.Diff(want, read(t, quota)); diff != "" {
			t.Errorf("quota that was %s (-want +got):\n%s", damage.name, diff)
		}
	}
}

func TestWriteSharesRemovesWhatIsLeftOver(t *testing.T) {
	layout := layoutIn(t.TempDir())
	store := newStore(t, layout)
	before, after := claimOf(share("gpu", share1, gpu0, gi), share("more", share2, gpu1, gi)), claimOf(share("gpu", share1, gpu0, gi))
	if err := store.WriteShares(before); err != nil {
		t.Fatal(err)
	}
	dir := layout.ShareDir(uid, after.Devices[0])
	write(t, filepath.Join(dir, "."+usageFile+"8123471"), "half a header")
	if err := store.WriteShares(after); err != nil {
		t.Fatal(err)
	}
	name := uid + "/" + gpu0 + "." + share1
	want := []string{uid, name, name + "/agent", name + "/quota", name + "/usage"}
	if diff := cmp.Diff(want, tree(t, layout.SharesDir)); diff != "" {
		t.Errorf("after the claim has one share less (-want +got):\n%s", diff)
	}
	if err := store.WriteShares(claimOf(whole("gpu", "gpu-1"))); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, layout.SharesDir); len(left) > 0 {
		t.Errorf("after the claim has no share: %v", left)
	}
}

func TestRemoveMayBeRepeated(t *testing.T) {
	root := t.TempDir()
	layout, claim := layoutIn(root), claimOf(share("gpu", share1, gpu0, gi))
	store := newStore(t, layout)
	if err := errors.Join(store.RemoveSpec(uid), store.RemoveShares(uid)); err != nil {
		t.Errorf("remove what was never there: %v", err)
	}
	if err := errors.Join(store.WriteShares(claim), store.WriteSpec(claim)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(store.RemoveSpec(uid), store.RemoveShares(uid)); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"cdi", "shares"}, tree(t, root)); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	}
}

func TestHostileUIDsRemoveNothing(t *testing.T) {
	root := t.TempDir()
	layout := layoutIn(root)
	store := newStore(t, layout)
	for _, dir := range []string{layout.SpecDir, filepath.Join(layout.SharesDir, "a"), filepath.Join(root, "x"), filepath.Join(root, "b")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "x.json"), "{}")
	before := tree(t, root)
	for kind, name := range hostileNames {
		_ = store.RemoveSpec(name) // what matters is what it removes
		if err := store.RemoveShares(name); err == nil {
			t.Errorf("%s: RemoveShares(%q) succeeds", kind, name)
		}
	}
	if diff := cmp.Diff(before, tree(t, root)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

func TestClaimsListsOurOwn(t *testing.T) {
	layout := layoutIn(t.TempDir())
	store := newStore(t, layout)
	if got, err := store.Claims(); err != nil || len(got) > 0 {
		t.Errorf("without directories: got %v, %v", got, err)
	}
	for _, name := range []string{"both", "shares-only", ".hidden", "a b"} {
		if err := os.MkdirAll(filepath.Join(layout.SharesDir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(layout.SpecDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"gpu.aliquot.dev-share_both.json", "gpu.aliquot.dev-share_spec-only.json",
		"gpu.aliquot.dev-share_.json", "gpu.aliquot.dev-share_.._x.json", "gpu.aliquot.dev-share_a b.json", "gpu.aliquot.dev-share_yaml.yaml",
		"gpu.aliquot.dev_metadata_uid_gpu.json", "nvidia.com-gpu.json", "k8s.gpu.nvidia.com-claim_other.json", "spec.1234.tmp",
	} {
		write(t, filepath.Join(layout.SpecDir, name), "{}")
	}
	got, err := store.Claims()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"both", "shares-only", "spec-only"}, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

func TestErrorsNameTheClaim(t *testing.T) {
	root := t.TempDir()
	layout, claim := layoutIn(root), claimOf(share("gpu", share1, gpu0, gi))
	write(t, layout.SpecDir, "a file where the directory has to be")
	write(t, layout.SharesDir, "a file where the directory has to be")
	store := newStore(t, layout)
	_, list := store.Claims()
	for want, err := range map[string]error{
		"write CDI spec of claim " + uid + ": ":             store.WriteSpec(claim),
		"write share " + share1 + " of claim " + uid + ": ": store.WriteShares(claim),
		"list " + layout.SpecDir + ": ":                     list,
		"remove CDI spec of claim " + uid + ": ":            store.RemoveSpec(uid),
		"remove shares of claim " + uid + ": ":              store.RemoveShares(uid),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

func TestSpecThatARuntimeWouldNotTakeIsRefused(t *testing.T) {
	layout, claim := layoutIn(t.TempDir()), claimOf(Device{Request: "gpu", ID: "gpu-0"})
	if err := newStore(t, layout).WriteSpec(claim); err == nil || !strings.Contains(err.Error(), "empty device edits") {
		t.Errorf("got error %v for a device without any edits", err)
	}
	if left := tree(t, filepath.Dir(layout.SpecDir)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimRight(content, "\x00"))
}

func stat(t testing.TB, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// A hole in the accounting region would be filled on a container's first write, and a full tmpfs kill that container.
func TestShareFilesHaveNoHoles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share")
	if err := writeShare(dir, Quota{GPU: "GPU-0", MemoryBytes: 1 << 30, CorePolicy: "Fixed"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{usageFile, agentFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if taken := info.Sys().(*syscall.Stat_t).Blocks * 512; taken < info.Size() {
			t.Errorf("%s is %d bytes and takes %d on disk", name, info.Size(), taken)
		}
	}
}

// A runtime reads all specs again when one changes, so what is right is left alone, and what is not is put right.
func TestASpecThatIsRightIsNotWrittenAgain(t *testing.T) {
	layout, claim := layoutIn(t.TempDir()), claimOf(share("gpu", share1, gpu0, 10*gi), whole("other", "gpu-1"))
	store, path := newStore(t, layout), filepath.Join(layout.SpecDir, specName(claim.UID))
	rewritten := func() (os.FileInfo, string) {
		t.Helper()
		if err := store.WriteSpec(claim); err != nil {
			t.Fatal(err)
		}
		return stat(t, path), read(t, path)
	}
	first, content := rewritten()
	if second, _ := rewritten(); !os.SameFile(first, second) {
		t.Error("the same spec was written again")
	}
	for _, damaged := range []string{"", "{}", strings.ReplaceAll(content, claim.UID, "another"), content[:len(content)/2]} {
		write(t, path, damaged)
		if _, now := rewritten(); now != content {
			t.Errorf("after %.40q the spec is %s", damaged, now)
		}
	}
}
