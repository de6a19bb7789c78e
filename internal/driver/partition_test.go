package driver

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"

	"aliquot.dev/aliquot/internal/gpu"
)

// A partition of gpu-0, and another that lies over it.
const (
	small = "gpu-0-mig-1g-10gb-0"
	large = "gpu-0-mig-3g-40gb-0"
)

// divided is what the hardware has of gpu-0: its mode and "profile@start" of each partition.
func (r *rig) divided() string {
	m := r.hardware.devices[0].MIG
	parts := []string{fmt.Sprint(m.Enabled)}
	for _, p := range m.Partitions {
		parts = append(parts, fmt.Sprintf("%s@%d", p.Profile, p.Placement.Start))
	}
	return strings.Join(parts, " ")
}

func (r *rig) wantDivided(t *testing.T, want string) {
	t.Helper()
	if got := r.divided(); got != want {
		t.Errorf("gpu-0 is divided %q, want %q", got, want)
	}
}

func TestPartitionIsMadeAndRemoved(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", small, "s1", "9984Mi", "0"))
	r.allocate(t, claim)
	var first string
	for range 2 { // replayed
		devices := mustPrepare(t, d, claim)
		r.wantDivided(t, "true 1g.10gb@0")
		uuid := r.hardware.devices[0].MIG.Partitions[0].UUID
		if got := devices[0].Metadata.Attributes["uuid"].StringValue; got == nil || *got != uuid {
			t.Errorf("the metadata's UUID is %v, want %s", got, uuid)
		}
		if first == "" {
			first = uuid
		}
		if uuid != first || d.changes != 1 {
			t.Errorf("replayed, the partition is another, or counts as %d changes", d.changes)
		}
		spec := read(t, d.config.Layout.SpecDir+"/gpu.aliquot.dev-share_c-uid.json")
		if !strings.Contains(spec, "/dev/"+uuid) || strings.Contains(spec, "libaliquot") {
			t.Errorf("the spec of a whole partition is %s", spec)
		}
		checkInvariant(t, d)
	}
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	r.wantDivided(t, "false")
	checkInvariant(t, d)
	nothingLeft(t, r)
}

func TestPartitionIsSharedUntilTheLastShareEnds(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	a, b := claimOf("a", share("gpu", small, "s1", "4Gi", "50")), claimOf("b", share("gpu", small, "s2", "5Gi", "0"))
	c := claimOf("c", share("gpu", small, "s3", "1Gi", "0"))
	mustPrepare(t, d, a)
	mustPrepare(t, d, b)
	if _, err := prepare(t, d, c); err == nil || !strings.Contains(err.Error(), "partition "+small+" of GPU "+h100GPU0+" would give out") {
		t.Errorf("more than the partition has: %v", err)
	}
	checkInvariant(t, d)
	for _, step := range []struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{{a, "true 1g.10gb@0"}, {b, "false"}} {
		if err := unprepare(t, d, step.claim); err != nil {
			t.Fatal(err)
		}
		r.wantDivided(t, step.want)
		checkInvariant(t, d)
	}
}

// TestModesExcludeEachOther: whatever the scheduler says, a GPU has one mode, and what cannot be had together is an error
// that can be tried again.
func TestModesExcludeEachOther(t *testing.T) {
	for _, minor := range []string{"36+", "37"} {
		t.Run(minor, func(t *testing.T) {
			r := newRig(t, "h100x8")
			r.client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{Major: "1", Minor: minor, GitVersion: "v1." + minor}
			d := r.start(t)
			d.askVersion(quiet(t))
			shared, part, over := claimOf("s", share("gpu", "gpu-0", "s1", "1Gi", "0")), claimOf("p", share("gpu", small, "s2", "1Gi", "0")), claimOf("o", share("gpu", large, "s3", "1Gi", "0"))
			for _, order := range [][2]*resourceapi.ResourceClaim{{shared, part}, {part, shared}, {part, over}} {
				mustPrepare(t, d, order[0])
				_, err := prepare(t, d, order[1])
				if err == nil {
					t.Fatalf("%s beside %s is prepared", order[1].Name, order[0].Name)
				}
				modes := strings.Contains(err.Error(), "one GPU, one mode")
				if blamed := strings.Contains(err.Error(), "Kubernetes v1."+minor+" does not keep"); blamed != (modes && minor == "36+") || modes != (order[1] != over) {
					t.Errorf("%s beside %s: %v", order[1].Name, order[0].Name, err)
				}
				checkInvariant(t, d)
				if err := unprepare(t, d, order[0]); err != nil {
					t.Fatal(err)
				}
				mustPrepare(t, d, order[1])
				checkInvariant(t, d)
				if err := unprepare(t, d, order[1]); err != nil {
					t.Fatal(err)
				}
			}
			nothingLeft(t, r)
		})
	}
}

func TestShareEndsIdleMIGMode(t *testing.T) {
	r := newRig(t, "h100x8")
	r.hardware.devices[0].MIG.Enabled = true
	d := r.start(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "0"))
	r.hardware.refuses = map[string]error{"mode": errors.New("In use by another client")}
	if _, err := prepare(t, d, claim); err == nil || err.Error() != "GPU "+h100GPU0+" is partitioned and cannot be shared: In use by another client" {
		t.Errorf("got error %v", err)
	}
	r.hardware.refuses = nil
	mustPrepare(t, d, claim)
	r.wantDivided(t, "false")
}

// TestFailuresLeaveTheStateBeforeOrAfter lets each change of the hardware fail once.
func TestFailuresLeaveTheStateBeforeOrAfter(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", small, "s1", "1Gi", "0"))
	r.allocate(t, claim)
	refuse := func(what string) { r.hardware.refuses = map[string]error{what: errors.New("Insufficient Resources")} }

	refuse("create")
	if _, err := prepare(t, d, claim); err == nil || err.Error() != "Insufficient Resources" {
		t.Errorf("got error %v", err)
	}
	r.wantDivided(t, "false")
	r.hardware.refuses = nil
	mustPrepare(t, d, claim)
	checkInvariant(t, d)

	refuse("destroy")
	if err := unprepare(t, d, claim); err == nil {
		t.Error("a partition that stays is unprepared")
	}
	if _, err := prepare(t, d, claimOf("o", share("gpu", large, "s1", "1Gi", "0"))); err == nil {
		t.Error("what is still there is given out again")
	}
	refuse("mode") // is no error: the next share tries again
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	r.wantDivided(t, "true")
	nothingLeft(t, r)
}

// TestPartitionsOfOthersAreLeftAlone: they are given out as they are, and stay.
func TestPartitionsOfOthersAreLeftAlone(t *testing.T) {
	other := gpu.Partition{UUID: "MIG-other", Profile: "1g.10gb", Placement: gpu.Placement{Start: 0, Size: 1}}
	r := newRig(t, "h100x8")
	m := r.hardware.devices[0].MIG
	d := r.start(t)

	// Made after the last discovery: it is used, and not taken for ours.
	m.Enabled, m.Partitions = true, []gpu.Partition{other}
	claim := claimOf("c", share("gpu", small, "s1", "1Gi", "0"))
	for range 2 { // tried again
		mustPrepare(t, d, claim)
		checkInvariant(t, d)
	}
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	r.wantDivided(t, "true 1g.10gb@0")
	if err := d.discover(quiet(t)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		large:   "partitions that an administrator made are in the way",
		"gpu-0": "an administrator has partitioned the GPU",
	} {
		if _, err := prepare(t, d, claimOf("x", share("gpu", name, "s", "1Gi", "0"))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	mustPrepare(t, d, claim)
	checkInvariant(t, d)
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	r.wantDivided(t, "true 1g.10gb@0")
}

// TestPartitionRemovedByHand: the claim's files follow the partition that takes its place, and the admin is told.
func TestPartitionRemovedByHand(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim := claimOf("c", share("gpu", small, "s1", "1Gi", "0"))
	r.allocate(t, claim)
	mustPrepare(t, d, claim)
	lost := r.hardware.devices[0].MIG.Partitions[0].UUID
	r.hardware.devices[0].MIG.Partitions = nil
	r.told()
	for range 2 {
		if err := d.discover(quiet(t)); err != nil {
			t.Fatal(err)
		}
		d.reconcile(quiet(t))
		checkInvariant(t, d)
	}
	want := []string{"Warning PartitionLost partition " + small + " of GPU " + h100GPU0 + ", " + lost + ", was removed while claim default/c has it; containers that use it must be restarted"}
	if diff := cmp.Diff(want, r.told()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	r.wantDivided(t, "true 1g.10gb@0")

	// Somebody else has put another in its place.
	r.hardware.devices[0].MIG.Partitions = []gpu.Partition{{UUID: "MIG-other", Profile: "3g.40gb", Placement: gpu.Placement{Start: 0, Size: 4}}}
	_ = d.discover(quiet(t))
	d.reconcile(quiet(t))
	if told := r.told(); len(told) != 2 || !strings.Contains(told[1], "RestoreFailed claim default/c: partition 3g.40gb at 0 is in the way") {
		t.Errorf("Events: %v", told)
	}
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	r.wantDivided(t, "true 3g.40gb@0")
}

// TestModeChangedUnderAShare: an administrator partitions a GPU whose shares rest.
func TestModeChangedUnderAShare(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	claim, bystander := claimOf("c", share("gpu", "gpu-0", "s1", "1Gi", "0")), claimOf("b", share("gpu", "gpu-1", "s2", "1Gi", "0"))
	r.allocate(t, claim, bystander)
	mustPrepare(t, d, claim)
	mustPrepare(t, d, bystander)
	m := r.hardware.devices[0].MIG
	m.Enabled = true // nothing is in the way of turning it off again
	for _, want := range []string{"", "Warning RestoreFailed claim default/c: GPU " + h100GPU0 + " is partitioned and cannot be shared: In use by another client"} {
		_ = d.discover(quiet(t))
		d.reconcile(quiet(t))
		if got := strings.Join(r.told(), "\n"); got != want {
			t.Errorf("Events %q, want %q", got, want)
		}
		checkBooks(t, d, nil)
		r.wantDivided(t, map[bool]string{true: "false", false: "true 1g.10gb@0"}[want == ""])
		m.Enabled, m.Partitions = true, []gpu.Partition{{UUID: "MIG-other", Profile: "1g.10gb", Placement: gpu.Placement{Start: 0, Size: 1}}}
	}
	if _, err := prepare(t, d, claim); err == nil || !strings.Contains(err.Error(), "an administrator has partitioned the GPU") {
		t.Errorf("replayed: %v", err)
	}
	mustPrepare(t, d, bystander)
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
}

// TestPartitionsComeBackAfterAReboot, in which hardware forgets them.
func TestPartitionsComeBackAfterAReboot(t *testing.T) {
	r := newRig(t, "h100x8")
	claim := claimOf("c", share("gpu", small, "s1", "1Gi", "0"))
	r.allocate(t, claim)
	mustPrepare(t, r.start(t), claim)
	m := r.hardware.devices[0].MIG
	m.Enabled, m.Partitions = false, nil
	wipe(t, r)
	d := r.start(t)
	checkInvariant(t, d)
	r.wantDivided(t, "true 1g.10gb@0")
	if told := r.told(); len(told) > 0 {
		t.Errorf("Events: %v", told)
	}
}

func TestAmpereOffersWhatItsModeAllows(t *testing.T) {
	r := newRig(t, "a100x8")
	d := r.start(t)
	if _, err := prepare(t, d, claimOf("p", share("gpu", "gpu-0-mig-1g-5gb-0", "s", "1Gi", "0"))); err == nil || !strings.Contains(err.Error(), "not in MIG mode, and entering it takes a reset") {
		t.Errorf("a partition out of MIG mode: %v", err)
	}
	mustPrepare(t, d, claimOf("s", share("gpu", "gpu-0", "s", "1Gi", "0")))
	r.hardware.devices[1].MIG.Enabled = true
	if err := d.discover(quiet(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(t, d, claimOf("x", share("gpu", "gpu-1", "s", "1Gi", "0"))); err == nil || !strings.Contains(err.Error(), "in MIG mode, and leaving it takes a reset") {
		t.Errorf("a share in MIG mode: %v", err)
	}
	claim := claimOf("p", share("gpu", "gpu-1-mig-1g-5gb-0", "s", "1Gi", "0"))
	mustPrepare(t, d, claim)
	if err := unprepare(t, d, claim); err != nil {
		t.Fatal(err)
	}
	if !r.hardware.devices[1].MIG.Enabled {
		t.Error("the mode of an Ampere was changed")
	}
}
