package driver

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"aliquot.dev/aliquot/internal/quota"
)

// corruptions are what may become of a record on disk.
var corruptions = map[string]struct {
	spoil   func(good string) string
	wantErr string // how the Event goes on after "record cannot be read: claim c-uid: "
}{
	"torn":            {func(good string) string { return good[:len(good)/2] }, "unexpected EOF"},
	"empty":           {func(string) string { return "" }, "EOF"},
	"garbage":         {func(string) string { return "\x00\x00\x00\x00" }, `invalid character '\x00' looking for beginning of value`},
	"another claim's": {func(good string) string { return strings.ReplaceAll(good, "c-uid", "d-uid") }, `the file is of claim "d-uid"`},
	"an odd version":  {func(good string) string { return strings.Replace(good, `"version": 1`, `"version": 0`, 1) }, "version 0 is not 1"},
	"two values":      {func(good string) string { return good + good }, "more than one value"},
}

func TestCorruptRecordIsSetAsideAndRebuilt(t *testing.T) {
	for name, corruption := range corruptions {
		for when, restart := range map[string]bool{"before a start": true, "while running": false} {
			t.Run(name+" "+when, func(t *testing.T) {
				r := newRig(t, "h100x8")
				d := r.start(t)
				claim := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0"))
				r.allocate(t, claim)
				first := mustPrepare(t, d, claim)
				usage := filepath.Join(r.config.Layout.SharesDir, "c-uid", h100GPU0+".s1", "usage")
				write(t, usage, "what containers have mounted")
				spoilt := corruption.spoil(read(t, d.records.path("c-uid")))
				write(t, d.records.path("c-uid"), spoilt)
				if restart {
					d = r.start(t)
				} else {
					d.reconcile(quiet(t))
				}
				checkInvariant(t, d)
				want := []string{"Warning RecordCorrupt record cannot be read: claim c-uid: " + corruption.wantErr + "; it is set aside and rebuilt from the API"}
				if diff := cmp.Diff(want, r.told()); diff != "" {
					t.Errorf("Events (-want +got):\n%s", diff)
				}
				if aside := read(t, d.records.path("c-uid")+".corrupt"); aside != spoilt {
					t.Errorf("set aside is %q, want %q", aside, spoilt)
				}
				if got := read(t, usage); got != "what containers have mounted" {
					t.Errorf("usage is %.40q", got)
				}
				if diff := cmp.Diff(first, mustPrepare(t, d, claim)); diff != "" {
					t.Errorf("replayed (-first +now):\n%s", diff)
				}
				r.apiErr = errors.New("connection refused")
				if d = r.start(t); len(r.told()) > 0 || len(d.lostClaims()) > 0 {
					t.Errorf("at the next start it is told again, or lost: %v", d.lostClaims())
				}
				if err := unprepare(t, d, claim); err != nil {
					t.Fatal(err)
				}
				checkInvariant(t, d)
				if left := list(t, d.records.dir); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
}

// TestMissingRecordIsMadeAgain: what containers have mounted stays as it is.
func TestMissingRecordIsMadeAgain(t *testing.T) {
	for when, restart := range map[string]bool{"before a start": true, "while running": false} {
		t.Run(when, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			claim, other := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0")), claimOf("other", share("gpu", "gpu-0", "s2", "60Gi", "0"))
			r.allocate(t, claim, other)
			first := mustPrepare(t, d, claim)
			wantSpecs, wantShares := onDisk(t, d)
			if err := os.Remove(d.records.path("c-uid")); err != nil {
				t.Fatal(err)
			}
			r.apiErr = errors.New("connection refused")
			if restart {
				d = r.start(t)
			}
			d.reconcile(quiet(t))
			sameFiles(t, d, wantSpecs, wantShares)
			r.apiErr = nil
			stillHeld(t, d, claim, other, first)
			want := []string{"Warning RecordMissing claim default/c (uid c-uid) is prepared here and has no record; it is made again from the API"}
			if diff := cmp.Diff(want, r.told()); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFilesOfAClaimThatIsGoneAreKeptWhileAProcessUsesThem: also where nothing else tells of the claim.
func TestFilesOfAClaimThatIsGoneAreKeptWhileAProcessUsesThem(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0"))
	mustPrepare(t, d, claim)
	process := hold(t, d, "c-uid")
	if err := os.Remove(d.records.path("c-uid")); err != nil {
		t.Fatal(err)
	}
	d = r.start(t)
	if specs, shares := onDisk(t, d); len(specs) == 0 || len(shares) == 0 {
		t.Error("the files are gone that a process uses")
	}
	_ = process.Close()
	d.reconcile(quiet(t))
	checkInvariant(t, d)
	nothingLeft(t, r)
	if got := counts(t, d)["reconcile_actions_total orphan_removed"]; got != 1 {
		t.Errorf("%v orphans counted", got)
	}
}

func TestCorruptRecordWhileTheAPIIsDown(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim, other := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0")), claimOf("other", share("gpu", "gpu-0", "s2", "60Gi", "0"))
	r.allocate(t, claim, other)
	first := mustPrepare(t, d, claim)
	wantSpecs, wantShares := onDisk(t, d)
	write(t, d.records.path("c-uid"), "{")
	r.apiErr = errors.New("connection refused")
	for range 2 {
		d = r.start(t)
		d.reconcile(quiet(t))
		sameFiles(t, d, wantSpecs, wantShares)
	}
	r.apiErr = nil
	stillHeld(t, d, claim, other, first)
}

func sameFiles(t *testing.T, d *Driver, wantSpecs map[string][]string, wantShares map[string]string) {
	t.Helper()
	gotSpecs, gotShares := onDisk(t, d)
	if diff := cmp.Diff(wantSpecs, gotSpecs) + cmp.Diff(wantShares, gotShares); diff != "" {
		t.Fatalf("files of the claim (-before +after):\n%s", diff)
	}
}

// stillHeld checks that what a claim holds whose record was lost is not given to another one, and that it is prepared as it was first.
func stillHeld(t *testing.T, d *Driver, claim, other *resourceapi.ResourceClaim, first []kubeletplugin.Device) {
	t.Helper()
	if _, err := prepare(t, d, other); !errors.Is(err, quota.ErrOvercommitted) {
		t.Errorf("what the lost claim holds is given out again: %v", err)
	}
	checkInvariant(t, d)
	if diff := cmp.Diff(first, mustPrepare(t, d, claim)); diff != "" {
		t.Errorf("replayed (-first +now):\n%s", diff)
	}
}

func TestLostClaimIsRebuiltWhenTheAPIIsBack(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(*testing.T, *rig, *resourceapi.ResourceClaim)
		wantLeft  bool
	}{
		"it lives":             {func(*testing.T, *rig, *resourceapi.ResourceClaim) {}, true},
		"it is gone":           {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) { r.forget(t, claim) }, false},
		"it is deallocated":    {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) { r.reallocate(t, claim) }, false},
		"it is on other nodes": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) { r.reallocate(t, claim, elsewhere) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			claim := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0"))
			r.allocate(t, claim)
			mustPrepare(t, d, claim)
			write(t, d.records.path("c-uid"), "{")
			r.apiErr = errors.New("connection refused")
			d = r.start(t)
			r.apiErr = nil
			tc.meanwhile(t, r, claim)
			d.reconcile(quiet(t))
			checkInvariant(t, d)
			if _, left := recorded(t, d, nil)["c-uid"]; left != tc.wantLeft {
				t.Errorf("record there: %t, want %t", left, tc.wantLeft)
			}
			if files := list(t, d.records.dir); (len(files) > 0) != tc.wantLeft {
				t.Errorf("left: %v", files)
			}
			if lost := d.lostClaims(); len(lost) > 0 {
				t.Errorf("still lost: %v", lost)
			}
		})
	}
}

// elsewhere is a result on another node.
var elsewhere = with(share("gpu", "gpu-0", "s1", "60Gi", "0"), func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "other/gpus" })

// reallocate gives a claim in the API another allocation, or none.
func (r *rig) reallocate(t *testing.T, claim *resourceapi.ResourceClaim, results ...resourceapi.DeviceRequestAllocationResult) {
	t.Helper()
	r.forget(t, claim)
	now := claimOf(claim.Name, results...)
	if len(results) == 0 {
		now.Status.Allocation = nil
	}
	r.allocate(t, now)
}

func TestReconcileFollowsTheAPI(t *testing.T) {
	tests := map[string]struct {
		change   func(*testing.T, *rig, *resourceapi.ResourceClaim)
		wantLeft bool
	}{
		"it lives":           {func(*testing.T, *rig, *resourceapi.ResourceClaim) {}, true},
		"its files are lost": {func(t *testing.T, r *rig, _ *resourceapi.ResourceClaim) { wipe(t, r) }, true},
		"API down": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
			r.forget(t, claim)
			r.apiErr = errors.New("down")
		}, true},
		"it is gone": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) { r.forget(t, claim) }, false},
		"it is gone, hardware down": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
			r.forget(t, claim)
			r.hardware.err = errors.New("down")
		}, false},
		"it is deallocated":     {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) { r.reallocate(t, claim) }, false},
		"it is on another node": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) { r.reallocate(t, claim, elsewhere) }, false},
		"it has another share": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
			r.reallocate(t, claim, share("gpu", "gpu-0", "s9", "1Gi", "0"))
		}, false},
		"it has another device": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
			r.reallocate(t, claim, share("gpu", "gpu-1", "s1", "1Gi", "0"))
		}, false},
		"it is whole now": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
			r.reallocate(t, claim, whole("gpu", "gpu-0"))
		}, false},
		"another has its name": {func(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
			r.forget(t, claim)
			other := claimOf("c", claim.Status.Allocation.Devices.Results...)
			other.UID = "another"
			r.allocate(t, other)
		}, false},
	}
	for name, tc := range tests {
		for when, restart := range map[string]bool{"at start": true, "while running": false} {
			t.Run(name+" "+when, func(t *testing.T) {
				r := newRig(t, "h100x8")
				d := r.start(t)
				claim, bystander := claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "0")), claimOf("bystander", share("gpu", "gpu-0", "s2", "1Gi", "0"))
				r.allocate(t, claim, bystander)
				mustPrepare(t, d, claim)
				mustPrepare(t, d, bystander)
				tc.change(t, r, claim)
				if restart {
					d = r.start(t)
				} else {
					_ = d.discover(quiet(t))
					d.reconcile(quiet(t))
				}
				if _, left := recorded(t, d, nil)["c-uid"]; left != tc.wantLeft {
					t.Errorf("record there: %t, want %t", left, tc.wantLeft)
				}
				if _, left := recorded(t, d, nil)["bystander-uid"]; !left {
					t.Error("the bystander is gone")
				}
				checkInvariant(t, d)
			})
		}
	}
}

func TestFilesOfNobodyAreRemoved(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "0"))
	r.allocate(t, claim)
	mustPrepare(t, d, claim)
	specs, shares := r.config.Layout.SpecDir, r.config.Layout.SharesDir
	write(t, filepath.Join(specs, "nvidia.com-gpu.json"), "not ours")
	write(t, filepath.Join(specs, "gpu.aliquot.dev_metadata_x_gpu.json"), "the kubelet library's")
	before := append(list(t, specs), list(t, shares)...)
	write(t, filepath.Join(specs, "gpu.aliquot.dev-share_spec.json"), "{}")
	write(t, filepath.Join(shares, "share", "GPU-0.s", "quota"), "version 1\n")
	write(t, filepath.Join(specs, "gpu.aliquot.dev-share_a-stuck.json", "file"), "which cannot be removed as a file")
	d.reconcile(quiet(t))
	after := append(list(t, specs), list(t, shares)...)
	after = slices.DeleteFunc(after, func(path string) bool { return strings.Contains(path, "_a-stuck.json") })
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestHalfWrittenRecordsAreSwept(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "0"))
	r.allocate(t, claim)
	mustPrepare(t, d, claim)
	write(t, filepath.Join(d.records.dir, ".c-uid.json8273645"), "{")
	write(t, filepath.Join(d.records.dir, ".json"), "{")
	d = r.start(t)
	if diff := cmp.Diff([]string{"c-uid.json"}, list(t, d.records.dir)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	checkInvariant(t, d)
}

func TestOvercommitmentThatIsThereIsTold(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0"))
	r.allocate(t, claim)
	mustPrepare(t, d, claim)
	r.hardware.devices = slices.Clone(r.hardware.devices)
	r.hardware.devices[0].MemoryTotal = 50 << 30
	d = r.start(t)
	told := r.told()
	if len(told) != 1 || !strings.HasPrefix(told[0], "Warning Overcommitted GPU is already given out: GPU "+h100GPU0) {
		t.Errorf("Events: %v", told)
	}
	if _, ok := recorded(t, d, nil)["c-uid"]; !ok {
		t.Error("a claim that may be running is gone")
	}
}

func TestUnreadableRecordsStopTheStart(t *testing.T) {
	r := newRig(t, "h100x8")
	write(t, filepath.Join(r.config.DataDir, "claims"), "a file where the directory has to be")
	d, err := New(r.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(quiet(t)); err == nil || !strings.HasPrefix(err.Error(), "list records: ") {
		t.Errorf("got error %v", err)
	}
	d.reconcile(quiet(t)) // and a running driver removes nothing
	if _, err := os.Stat(filepath.Join(r.config.DataDir, "claims")); err != nil {
		t.Error(err)
	}
}

// TestFilesThatCannotBeChangedAreTold: by an Event that names the claim, for as long as that is so.
func TestFilesThatCannotBeChangedAreTold(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "0"))
	r.allocate(t, claim)
	mustPrepare(t, d, claim)
	spec := filepath.Join(r.config.Layout.SpecDir, "gpu.aliquot.dev-share_c-uid.json")
	if err := os.Remove(spec); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(spec, "in the way"), "")
	for _, want := range []string{
		"Warning RestoreFailed claim default/c: ",
		"Warning UnprepareFailed claim default/c (uid c-uid) is gone, and its share cannot be given back: ",
	} {
		d.reconcile(quiet(t))
		if told := r.told(); len(told) != 1 || !strings.HasPrefix(told[0], want) {
			t.Errorf("Events: %q, want one that begins %q", told, want)
		}
		if len(recorded(t, d, nil)) != 1 {
			t.Error("the share is given back although its spec is there")
		}
		if strings.Contains(want, "RestoreFailed") {
			r.forget(t, claim)
		}
	}
	if err := os.RemoveAll(spec); err != nil {
		t.Fatal(err)
	}
	d.reconcile(quiet(t))
	checkInvariant(t, d)
	nothingLeft(t, r)
}
