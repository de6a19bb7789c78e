package driver

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"aliquot.dev/aliquot/internal/quota"
)

// checkInvariant is what must hold whenever nothing is left to mend: no GPU is overcommitted, records, ledger and specs
// are of the same claims, and there are share directories for exactly the limited allocations.
func checkInvariant(t testing.TB, d *Driver) {
	t.Helper()
	checkBooks(t, d, nil)
	checkPartitions(t, d)
	wantSpecs, wantShares := expected(t, d, nil)
	gotSpecs, gotShares := onDisk(t, d)
	if diff := gocmp.Diff(wantSpecs, gotSpecs); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(wantShares, gotShares); diff != "" {
		t.Errorf("share files (-want +got):\n%s", diff)
	}
}

// checkBooks is what must hold at any time: no GPU is overcommitted and the ledger is that of the records, but for the
// claims in damaged, whose record cannot be read; no file is of a claim without a record.
func checkBooks(t testing.TB, d *Driver, damaged map[string]bool) {
	t.Helper()
	if err := d.ledger.Check(); err != nil {
		t.Error(err)
	}
	want, got := map[string][]quota.Share{}, map[string][]quota.Share{}
	for uid, r := range recorded(t, d, damaged) {
		want[uid] = r.shares()
	}
	for _, uid := range d.ledger.Claims() {
		if !damaged[string(uid)] {
			got[string(uid)] = d.ledger.Shares(uid)
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("ledger (-records +ledger):\n%s", diff)
	}
	wantSpecs, wantShares := expected(t, d, damaged)
	gotSpecs, gotShares := onDisk(t, d)
	for uid, devices := range gotSpecs {
		if !damaged[uid] && !slices.Equal(devices, wantSpecs[uid]) {
			t.Errorf("the spec of claim %s has devices %v, its record says %v", uid, devices, wantSpecs[uid])
		}
	}
	for path, content := range gotShares {
		if uid, _, _ := strings.Cut(path, "/"); !damaged[uid] && content != wantShares[path] {
			t.Errorf("share file %s is %q, its record says %q", path, content, wantShares[path])
		}
	}
}

// checkPartitions holds the hardware to the records: what they name and we made is there, and of ours nothing else. What
// others made has a UUID that the fake does not give.
func checkPartitions(t testing.TB, d *Driver) {
	t.Helper()
	want, got := map[string]bool{}, map[string]bool{}
	if marked, err := d.marks.load(); err != nil || !maps.Equal(marked, d.ours) {
		t.Errorf("marked are %v (%v), the driver knows %v", marked, err, d.ours)
	}
	for _, r := range recorded(t, d, nil) {
		for _, a := range r.Allocations {
			if s := a.slot(); d.ours[s] {
				want[fmt.Sprint(s.gpu, " ", s.profile, " ", s.placement)] = true
			}
		}
	}
	hardware := d.config.Partitioner.(interface{ fake() *fakeHardware }).fake()
	for _, device := range hardware.devices {
		if device.MIG == nil {
			continue
		}
		for _, p := range device.MIG.Partitions {
			if !strings.HasPrefix(p.UUID, "MIG-other") {
				got[fmt.Sprint(device.UUID, " ", p.Profile, " ", p.Placement)] = true
			}
		}
		if len(device.MIG.Partitions) == 0 && device.MIG.Enabled && device.MIG.Switchable && hardware.refuses["mode"] == nil {
			t.Errorf("GPU %s has no partition and is in MIG mode", device.UUID)
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("partitions (-records +hardware):\n%s", diff)
	}
}

// recorded reads all records.
func recorded(t testing.TB, d *Driver, damaged map[string]bool) map[string]record {
	t.Helper()
	good, _, err := d.records.uids()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]record{}
	for _, uid := range good {
		r, err := d.records.read(uid)
		if err == nil {
			all[uid] = r
		} else if !damaged[uid] {
			t.Error(err)
		}
	}
	return all
}

// expected says which CDI devices each claim has, and which share files there are with what in them; "" stands for files
// that are not text.
func expected(t testing.TB, d *Driver, damaged map[string]bool) (devices map[string][]string, files map[string]string) {
	devices, files = map[string][]string{}, map[string]string{}
	for uid, r := range recorded(t, d, damaged) {
		for _, a := range r.Allocations {
			devices[uid] = append(devices[uid], uid+"_"+strings.ReplaceAll(a.Request, "/", ".")+"_"+a.id())
			if !a.limited() {
				continue
			}
			uuid := a.GPU
			if p := a.Partition; p != nil {
				found, ok, _ := (&fakeHardware{devices: d.config.Partitioner.(interface{ fake() *fakeHardware }).fake().devices}).FindPartition(a.GPU, p.Profile, p.Placement)
				if uuid = found.UUID; !ok {
					t.Errorf("claim %s: its partition %s is not there", uid, a.Device)
				}
			}
			dir := uid + "/" + uuid + "." + a.id() + "/"
			files[dir+"agent"], files[dir+"usage"] = "", ""
			files[dir+"quota"] = fmt.Sprintf("version 1\ngpu %s\nmemory_bytes %d\ncore_percent %d\ncore_policy Fixed\npriority 0\n",
				uuid, a.Limits.MemoryBytes, a.Limits.CorePercent)
		}
		slices.Sort(devices[uid])
	}
	return devices, files
}

// onDisk is what expected describes, as it is.
func onDisk(t testing.TB, d *Driver) (devices map[string][]string, files map[string]string) {
	t.Helper()
	devices, files = map[string][]string{}, map[string]string{}
	layout := d.config.Layout
	for _, name := range list(t, layout.SpecDir) {
		uid, ok := strings.CutPrefix(strings.TrimSuffix(name, ".json"), "gpu.aliquot.dev-share_")
		if !ok {
			continue
		}
		spec, err := cdilib.ReadSpec(filepath.Join(layout.SpecDir, name), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, device := range spec.Devices {
			devices[uid] = append(devices[uid], device.Name)
		}
		slices.Sort(devices[uid])
	}
	for _, path := range list(t, layout.SharesDir) {
		files[path] = ""
		if filepath.Base(path) == "quota" {
			files[path] = read(t, filepath.Join(layout.SharesDir, path))
		}
	}
	return devices, files
}

// list returns all files below a directory, and the directories that are empty; none where it does not exist.
func list(t testing.TB, dir string) []string {
	t.Helper()
	leaves := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		delete(leaves, filepath.Dir(name))
		leaves[name] = true
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(leaves))
}

func read(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// matches says whether err is nil where no text is wanted, and is that text where one is.
func matches(err error, want string) bool {
	if want == "" {
		return err == nil
	}
	return err != nil && err.Error() == want
}
