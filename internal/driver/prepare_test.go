package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/quota"
)

func TestOvercommitmentIsRefusedAndOthersAreUnharmed(t *testing.T) {
	tests := map[string]struct {
		holder  resourceapi.DeviceRequestAllocationResult
		refused resourceapi.DeviceRequestAllocationResult
		wantErr string
	}{
		"memory": {
			holder: share("gpu", "gpu-0", "s1", "60Gi", "0"), refused: share("gpu", "gpu-0", "s2", "30Gi", "0"),
			wantErr: "GPU is already given out: GPU " + h100GPU0 + " would give out 96636764160 of 84943044608 bytes and 0 of 100 percent, claims [holder-uid] hold it",
		},
		"cores": {
			holder: share("gpu", "gpu-0", "s1", "1Gi", "60"), refused: share("gpu", "gpu-0", "s2", "1Gi", "41"),
			wantErr: "GPU is already given out: GPU " + h100GPU0 + " would give out 2147483648 of 84943044608 bytes and 101 of 100 percent, claims [holder-uid] hold it",
		},
		"whole beside a share": {
			holder: share("gpu", "gpu-0", "s1", "1Gi", "0"), refused: whole("gpu", "gpu-0"),
			wantErr: "GPU is already given out: GPU " + h100GPU0 + " would be whole and shared at once, claims [holder-uid] hold it",
		},
		"a share beside whole": {
			holder: whole("gpu", "gpu-0"), refused: share("gpu", "gpu-0", "s2", "1Gi", "0"),
			wantErr: "GPU is already given out: GPU " + h100GPU0 + " would be whole and shared at once, claims [holder-uid] hold it",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := newRig(t, "h100x8").start(t)
			holder, refused, other := claimOf("holder", tc.holder), claimOf("refused", tc.refused), claimOf("other", whole("gpu", "gpu-1"))
			results, err := d.PrepareResourceClaims(quiet(t), []*resourceapi.ResourceClaim{holder, refused, other})
			if err != nil {
				t.Fatal(err)
			}
			for claim, want := range map[*resourceapi.ResourceClaim]string{holder: "", refused: tc.wantErr, other: ""} {
				if result := results[claim.UID]; !matches(result.Err, want) || (result.Err == nil) != (len(result.Devices) == 1) {
					t.Errorf("claim %s: got devices %v, error %v, want %q", claim.Name, result.Devices, result.Err, want)
				}
			}
			if !errors.Is(results[refused.UID].Err, quota.ErrOvercommitted) {
				t.Errorf("%v is no ErrOvercommitted", results[refused.UID].Err)
			}
			checkInvariant(t, d)
			if err := unprepare(t, d, holder); err != nil {
				t.Fatal(err)
			}
			mustPrepare(t, d, refused)
			checkInvariant(t, d)
		})
	}
}

func TestAnAdminsAccessTakesNothingAway(t *testing.T) {
	monitor := claimOf("monitor", with(share("gpu", "gpu-0", "s9", "1Gi", "0"), func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = ptr.To(true) }))
	user := claimOf("user", whole("gpu", "gpu-0"))
	for name, order := range map[string][]*resourceapi.ResourceClaim{"before the user": {monitor, user}, "after the user": {user, monitor}} {
		t.Run(name, func(t *testing.T) {
			d := newRig(t, "h100x8").start(t)
			for _, claim := range order {
				mustPrepare(t, d, claim)
			}
			checkInvariant(t, d)
		})
	}
}

func TestReplayAnswersTheSame(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("a", "gpu-0", "s1", "81000Mi", "60"), whole("b", "gpu-1"))
	first := mustPrepare(t, d, claim)
	usage, err := os.Stat(filepath.Join(r.config.Layout.SharesDir, "c-uid", h100GPU0+".s1", "usage"))
	if err != nil {
		t.Fatal(err)
	}
	for name, before := range map[string]func(){
		"at once":               func() {},
		"after a restart":       func() { r.allocate(t, claim); d = r.start(t) },
		"after a wiped /run":    func() { wipe(t, r) },
		"after its quota broke": func() { write(t, filepath.Join(r.config.Layout.SharesDir, "c-uid", h100GPU0+".s1", "quota"), "") },
	} {
		before()
		if diff := cmp.Diff(first, mustPrepare(t, d, claim)); diff != "" {
			t.Errorf("replayed %s (-first +now):\n%s", name, diff)
		}
		checkInvariant(t, d)
		now, err := os.Stat(filepath.Join(r.config.Layout.SharesDir, "c-uid", h100GPU0+".s1", "usage"))
		if err != nil {
			t.Fatal(err)
		}
		if name == "after a wiped /run" {
			usage = now
		} else if !os.SameFile(usage, now) {
			t.Errorf("replayed %s: usage is another file, so running containers count for themselves", name)
		}
	}
}

// wipe is what a reboot does to the two directories on tmpfs.
func wipe(t *testing.T, r *rig) {
	t.Helper()
	for _, dir := range []string{r.config.Layout.SpecDir, r.config.Layout.SharesDir} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnotherAllocationOfAClaimTakesThePlaceOfTheFirst(t *testing.T) {
	d := newRig(t, "h100x8").start(t)
	mustPrepare(t, d, claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0"), share("more", "gpu-1", "s2", "60Gi", "0")))
	mustPrepare(t, d, claimOf("c", share("gpu", "gpu-0", "s3", "70Gi", "0")))
	checkInvariant(t, d)
	mustPrepare(t, d, claimOf("c", whole("gpu", "gpu-1")))
	checkInvariant(t, d)
	mustPrepare(t, d, claimOf("other", whole("gpu", "gpu-0")))
	checkInvariant(t, d)
}

func TestReplayOnAnotherGPUIsRefused(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "0"))
	mustPrepare(t, d, claim)
	before := recorded(t, d, nil)
	r.hardware.devices = renumbered(r.hardware.devices[1:])
	if err := d.discover(quiet(t)); err != nil {
		t.Fatal(err)
	}
	want := "device gpu-0 was GPU " + h100GPU0 + " when the claim was first prepared and is " + h100GPU1 + " now; delete the pod so that its claim is allocated anew"
	if _, err := prepare(t, d, claim); !matches(err, want) {
		t.Errorf("got error %v, want %q", err, want)
	}
	if diff := cmp.Diff(before, recorded(t, d, nil)); diff != "" {
		t.Errorf("records (-before +after):\n%s", diff)
	}
	checkInvariant(t, d)
	mustPrepare(t, d, claimOf("other", whole("gpu", "gpu-0")))
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	checkInvariant(t, d)
}

func renumbered(devices []gpu.Device) []gpu.Device {
	var all []gpu.Device
	for i, device := range devices {
		device.Index = i
		all = append(all, device)
	}
	return all
}

func TestNothingIsPreparedWhileTheHardwareDoesNotAnswer(t *testing.T) {
	for name, fail := range map[string]func(*fakeHardware, error){
		"no devices": func(h *fakeHardware, err error) { h.err = err },
		"no edits":   func(h *fakeHardware, err error) { h.noEdits = err },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			claim, other := claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "0")), claimOf("other", whole("gpu", "gpu-1"))
			r.allocate(t, claim, other)
			mustPrepare(t, d, claim)
			fail(r.hardware, errors.New("NVML says: driver not loaded"))
			for range 2 {
				if err := d.discover(quiet(t)); err == nil {
					t.Fatal("discovery succeeds")
				}
				d.reconcile(quiet(t))
			}
			want := "GPUs of this node cannot be prepared now, will be tried again: NVML says: driver not loaded"
			for _, claim := range []*resourceapi.ResourceClaim{claim, other} {
				if _, err := prepare(t, d, claim); !matches(err, want) {
					t.Errorf("claim %s: got error %v, want %q", claim.Name, err, want)
				}
			}
			if err := d.Ready(); !matches(err, "NVML says: driver not loaded") {
				t.Errorf("ready: %v", err)
			}
			checkInvariant(t, d)
			told := []string{"Warning DiscoveryFailed GPUs of this node cannot be prepared: NVML says: driver not loaded"}
			if diff := cmp.Diff(told, r.told()); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			fail(r.hardware, nil)
			if err := d.discover(quiet(t)); err != nil {
				t.Fatal(err)
			}
			mustPrepare(t, d, claim)
			mustPrepare(t, d, other)
			checkInvariant(t, d)
		})
	}
}

func TestUnprepareNeedsNoHardware(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "0"))
	mustPrepare(t, d, claim)
	r.hardware.err, r.apiErr = errors.New("down"), errors.New("down")
	d = r.start(t)
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	left := slices.DeleteFunc(list(t, filepath.Dir(r.config.DataDir)), func(name string) bool { return strings.HasSuffix(name, ".lock") })
	if len(left) != 3 {
		t.Errorf("left: %v, want three empty directories and locks", left)
	}
	checkInvariant(t, d)
}

func TestUnprepareOfAnUnknownClaimSucceeds(t *testing.T) {
	d := newRig(t, "h100x8").start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "0"))
	if err := unprepare(t, d, claim); err != nil {
		t.Errorf("never prepared: %v", err)
	}
	mustPrepare(t, d, claim)
	for range 2 {
		if err := unprepare(t, d, claim); err != nil {
			t.Error(err)
		}
		checkInvariant(t, d)
	}
}

func TestFailedUnprepareKeepsTheRecord(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim, other := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0")), claimOf("other", whole("gpu", "gpu-1"))
	mustPrepare(t, d, claim)
	mustPrepare(t, d, other)
	spec := filepath.Join(r.config.Layout.SpecDir, "gpu.aliquot.dev-share_c-uid.json")
	if err := os.Remove(spec); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(spec, "file"), "a directory that is not empty cannot be removed as a file")
	err := unprepare(t, d, claim)
	if err == nil || !strings.HasPrefix(err.Error(), "remove CDI spec of claim c-uid: ") {
		t.Errorf("got error %v", err)
	}
	if _, ok := recorded(t, d, nil)["c-uid"]; !ok {
		t.Error("the record is gone")
	}
	if _, err := prepare(t, d, claimOf("third", whole("gpu", "gpu-0"))); !errors.Is(err, quota.ErrOvercommitted) {
		t.Errorf("what is not unprepared is given out again: %v", err)
	}
	if err := os.RemoveAll(spec); err != nil {
		t.Fatal(err)
	}
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	checkInvariant(t, d)
}

// TestFullDisk keeps the records directory from being written in two ways, one of which works as any user.
func TestFullDisk(t *testing.T) {
	for name, fill := range map[string]func(t *testing.T, dir string) (free func()){"not a directory": block, "full": fillDisk} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			free := fill(t, d.records.dir)
			claim := claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "0"))
			_, err := prepare(t, d, claim)
			if err == nil || !strings.Contains(err.Error(), "record of claim c-uid: ") {
				t.Errorf("got error %v", err)
			}
			if claims := d.ledger.Claims(); len(claims) > 0 {
				t.Errorf("booked: %v", claims)
			}
			if specs, shares := onDisk(t, d); len(specs)+len(shares) > 0 {
				t.Errorf("written: %v, %v", specs, shares)
			}
			free()
			mustPrepare(t, d, claim)
			checkInvariant(t, d)
		})
	}
}

func TestFullDiskLeavesAReplayedClaimAsItWas(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	if err := os.MkdirAll(d.records.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	free := fillDisk(t, d.records.dir)
	free()
	mustPrepare(t, d, claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "0")))
	refill(t, d.records.dir)
	if _, err := prepare(t, d, claimOf("c", share("gpu", "gpu-0", "s2", "20Gi", "0"))); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got error %v", err)
	}
	checkInvariant(t, d)
	if held := d.ledger.Shares("c-uid"); len(held) != 1 || held[0].Limits.MemoryBytes != 10<<30 {
		t.Errorf("the claim holds %v", held)
	}
}

// block puts a file where the directory has to be.
func block(t *testing.T, dir string) func() {
	write(t, dir, "a file")
	return func() {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// fillDisk mounts a file system of a few files at dir and uses them up.
func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=4"); err != nil {
		t.Skipf("a tiny file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	refill(t, dir)
	return func() {
		for i := range 4 {
			_ = os.Remove(filepath.Join(dir, fmt.Sprint("filler", i)))
		}
	}
}

func refill(t *testing.T, dir string) {
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("filler", i)), nil, 0o600); errors.Is(err, unix.ENOSPC) {
			return
		}
	}
	t.Fatal("the file system does not fill up")
}

func TestFailedEffectIsFinishedByTheNextTry(t *testing.T) {
	for name, dir := range map[string]func(*rig) string{
		"share files": func(r *rig) string { return r.config.Layout.SharesDir },
		"CDI spec":    func(r *rig) string { return r.config.Layout.SpecDir },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			free := block(t, dir(r))
			claim := claimOf("c", share("gpu", "gpu-0", "s1", "60Gi", "0"))
			if _, err := prepare(t, d, claim); err == nil {
				t.Fatal("prepare succeeds")
			}
			if r, ok := recorded(t, d, nil)["c-uid"]; !ok || len(d.ledger.Shares("c-uid")) != 1 {
				t.Errorf("record %v, booked %v: what is half done must be known", r, d.ledger.Claims())
			}
			if _, err := os.Stat(filepath.Join(r.config.Layout.SpecDir, "gpu.aliquot.dev-share_c-uid.json")); err == nil {
				t.Error("there is a spec")
			}
			free()
			mustPrepare(t, d, claim)
			checkInvariant(t, d)
		})
	}
}
