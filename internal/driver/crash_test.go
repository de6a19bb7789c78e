package driver

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// crashClaim has a share and a whole GPU, so that it has files of every kind, and a partition.
func crashClaim() *resourceapi.ResourceClaim {
	return claimOf("c", share("a", "gpu-0", "s1", "60Gi", "50"), share("b", "gpu-0", "s2", "1Gi", "0"), whole("c", "gpu-1"),
		share("d", "gpu-6-mig-1g-10gb-6", "s3", "1Gi", "0"))
}

// withoutUUIDs leaves out what is another each time that a partition is made.
func withoutUUIDs(devices []kubeletplugin.Device) []kubeletplugin.Device {
	for _, device := range devices {
		if strings.Contains(device.DeviceName, "-mig-") {
			delete(device.Metadata.Attributes, "uuid")
		}
	}
	return devices
}

// undisturbed is what a driver answers that never dies.
func undisturbed(t *testing.T, claim *resourceapi.ResourceClaim) []kubeletplugin.Device {
	return mustPrepare(t, newRig(t, "h100x8").start(t), claim)
}

// TestDeathDuringPrepare lets the plugin die after each effect of prepare, the record being the first, and while it
// writes each file.
func TestDeathDuringPrepare(t *testing.T) {
	claim := crashClaim()
	want := undisturbed(t, claim)
	for k := range 4 {
		for _, torn := range []bool{false, true} {
			for _, lives := range []bool{true, false} {
				t.Run(fmt.Sprintf("after effect %d, torn %t, claim lives %t", k, torn, lives), func(t *testing.T) {
					r := newRig(t, "h100x8")
					d := r.start(t)
					planned, err := d.accept(claim)
					if err != nil {
						t.Fatal(err)
					}
					if err := d.reserve(planned); err != nil {
						t.Fatal(err)
					}
					effects := d.effects(planned, d.makeReady)
					if len(effects) != 3 {
						t.Fatalf("prepare has %d effects, this test knows three", len(effects))
					}
					if err := d.exclusively(func() error { return run(quiet(t), effects[:k]) }); err != nil {
						t.Fatal(err)
					}
					if torn {
						tear(t, r)
					}
					mends(t, r, claim, lives, want)
				})
			}
		}
	}
}

// TestDeathBeforeTheRecord lets the plugin die while it writes the record.
func TestDeathBeforeTheRecord(t *testing.T) {
	claim := crashClaim()
	r := newRig(t, "h100x8")
	tear(t, r)
	r.allocate(t, claim)
	d := r.start(t)
	checkInvariant(t, d)
	if diff := cmp.Diff(withoutUUIDs(undisturbed(t, claim)), withoutUUIDs(mustPrepare(t, d, claim))); diff != "" {
		t.Errorf("prepared (-want +got):\n%s", diff)
	}
	checkInvariant(t, d)
}

// TestDeathDuringUnprepare lets the plugin die before, between and after the steps of unprepare.
func TestDeathDuringUnprepare(t *testing.T) {
	claim := crashClaim()
	want := undisturbed(t, claim)
	for k := range 5 {
		for _, lives := range []bool{true, false} {
			t.Run(fmt.Sprintf("after step %d, claim lives %t", k, lives), func(t *testing.T) {
				r := newRig(t, "h100x8")
				d := r.start(t)
				mustPrepare(t, d, claim)
				steps := d.undoing("c-uid")
				if len(steps) != 4 {
					t.Fatalf("unprepare has %d steps, this test knows four", len(steps))
				}
				if err := d.exclusively(func() error { return run(quiet(t), steps[:k]) }); err != nil {
					t.Fatal(err)
				}
				recorded := k < len(steps)
				if lives && !recorded {
					r.allocate(t, claim)
					d := r.start(t)
					checkInvariant(t, d)
					nothingLeft(t, r) // the kubelet's word counts: it asked for the end
					return
				}
				mends(t, r, claim, lives, want)
			})
		}
	}
}

// tear leaves behind what a plugin does that is killed while it writes.
func tear(t *testing.T, r *rig) {
	t.Helper()
	share := filepath.Join(r.config.Layout.SharesDir, "c-uid", h100GPU0+".s1")
	write(t, filepath.Join(r.config.DataDir, "claims", ".c-uid.json8236478236478236"), `{"version": 1,`)
	write(t, filepath.Join(share, ".usage7236478236478236"), "ALQU")
	write(t, filepath.Join(share, ".quota5236478236478236"), "version 1\nmem")
	write(t, filepath.Join(r.config.Layout.SpecDir, "spec.8236.tmp"), `{"cdiVersion":`)
}

// mends starts another driver over what a dead one left: a claim that lives has all that it had, and a replay gives the
// same answer; of one that is gone, nothing is left.
func mends(t *testing.T, r *rig, claim *resourceapi.ResourceClaim, lives bool, want []kubeletplugin.Device) {
	t.Helper()
	if !lives {
		d := r.start(t)
		checkInvariant(t, d)
		nothingLeft(t, r)
		if claims := d.ledger.Claims(); len(claims) > 0 {
			t.Errorf("booked: %v", claims)
		}
		return
	}
	r.allocate(t, claim)
	d := r.start(t)
	checkInvariant(t, d)
	if specs, _ := onDisk(t, d); len(specs["c-uid"]) != len(want) {
		t.Errorf("CDI devices before the replay: %v", specs)
	}
	if diff := cmp.Diff(withoutUUIDs(want), withoutUUIDs(mustPrepare(t, d, claim))); diff != "" {
		t.Errorf("replayed (-want +got):\n%s", diff)
	}
	checkInvariant(t, d)
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	checkInvariant(t, d)
	nothingLeft(t, r)
}

// nothingLeft allows one thing: the CDI library's own temporary file, whose name does not say whose it is. It lies on
// tmpfs and no runtime reads it.
func nothingLeft(t *testing.T, r *rig) {
	t.Helper()
	for _, dir := range []string{r.config.Layout.SpecDir, r.config.Layout.SharesDir, filepath.Join(r.config.DataDir, "claims")} {
		for _, path := range list(t, dir) {
			if ok, _ := filepath.Match("spec.*.tmp", path); !ok {
				t.Errorf("left: %s in %s", path, dir)
			}
		}
	}
}

const childVariable = "ALIQUOT_TEST_CHILD"

// TestKilledAtAnyMoment kills a process that prepares and unprepares without end, and mends what it left.
func TestKilledAtAnyMoment(t *testing.T) {
	claims := []*resourceapi.ResourceClaim{
		crashClaim(),
		claimOf("d", share("gpu", "gpu-2", "s3", "10Gi", "0")),
		claimOf("e", share("gpu", "gpu-2", "s4", "10Gi", "0"), share("more", "gpu-3", "s5", "10Gi", "0")),
	}
	if root := os.Getenv(childVariable); root != "" {
		prepareForEver(t, newRigIn(t, root, "h100x8"), claims)
	}
	want := map[string][]kubeletplugin.Device{}
	for _, claim := range claims {
		want[claim.Name] = undisturbed(t, claim)
	}
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	root, seed := t.TempDir(), rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	killedWithRecords := 0
	for range rounds {
		killChild(t, root, 1+random.IntN(30), time.Duration(random.IntN(3_000_000)))
		r := newRigIn(t, root, "h100x8")
		alive := map[string]bool{}
		for _, claim := range claims {
			if alive[string(claim.UID)] = random.IntN(2) == 0; alive[string(claim.UID)] {
				r.allocate(t, claim)
			}
		}
		d := r.start(t)
		checkInvariant(t, d)
		for uid := range recorded(t, d, nil) {
			killedWithRecords++
			if !alive[uid] {
				t.Errorf("claim %s is gone, but not its record", uid)
			}
		}
		for _, claim := range claims {
			if diff := cmp.Diff(withoutUUIDs(want[claim.Name]), withoutUUIDs(mustPrepare(t, d, claim))); diff != "" {
				t.Errorf("claim %s (-want +got):\n%s", claim.Name, diff)
			}
		}
		checkInvariant(t, d)
		if told := r.told(); len(told) > 0 {
			t.Errorf("Events: %v", told)
		}
	}
	if rounds >= 30 && killedWithRecords == 0 {
		t.Error("no round was killed with a record on disk: the test tests nothing")
	}
}

// prepareForEver is the child's part. It says each thing that it has done.
func prepareForEver(t *testing.T, r *rig, claims []*resourceapi.ResourceClaim) {
	r.allocate(t, claims...)
	d := r.start(t)
	for i := 0; ; i++ {
		claim := claims[i%len(claims)]
		if _, err := prepare(t, d, claim); err != nil {
			t.Fatal(err)
		}
		fmt.Println("did prepare")
		if i%2 == 0 {
			continue
		}
		if err := unprepare(t, d, claims[(i+1)%len(claims)]); err != nil {
			t.Fatal(err)
		}
		fmt.Println("did unprepare")
	}
}

// killChild starts a child over root, lets it do some things, and kills it a moment later, wherever it then is.
func killChild(t *testing.T, root string, things int, later time.Duration) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledAtAnyMoment$")
	child.Env = append(os.Environ(), childVariable+"="+root)
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines, said := bufio.NewScanner(output), strings.Builder{}
	for did := 0; did < things && lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "did ") {
			did++
		}
	}
	<-time.After(later) // any moment will do: nothing is waited for
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(output)
	if err := child.Wait(); err == nil || child.ProcessState.Exited() {
		t.Fatalf("the child ended by itself: %v\n%s%s", err, said.String(), rest)
	}
}
