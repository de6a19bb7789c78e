package driver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// settleAll has a driver take in what others did, as it does before each thing of its own.
func settleAll(t *testing.T, d *Driver) {
	t.Helper()
	if err := d.exclusively(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// What one process prepares another one unprepares, and both know what is free.
func TestTwoProcessesShareTheirBooks(t *testing.T) {
	r := newRig(t, "h100x8")
	one, two := r.start(t), r.start(t)
	most := claimOf("most", share("gpu", "gpu-0", "s1", "70Gi", "60"))
	rest := claimOf("rest", share("gpu", "gpu-0", "s2", "20Gi", "0"))
	mustPrepare(t, one, most)
	if _, err := prepare(t, two, rest); err == nil || !strings.Contains(err.Error(), "is already given out") {
		t.Errorf("the second process gives out what the first one gave: %v", err)
	}
	if err := unprepare(t, two, most); err != nil {
		t.Fatal(err)
	}
	mustPrepare(t, one, rest)
	settleAll(t, two)
	for name, d := range map[string]*Driver{"first": one, "second": two} {
		if checkInvariant(t, d); t.Failed() {
			t.Errorf("so says the %s process", name)
		}
		if _, ok := d.booked["rest-uid"]; !ok || len(d.booked) != 1 {
			t.Errorf("the %s process has booked %v", name, d.booked)
		}
	}
}

// A process that sees a partition go which it made knows that the GPU is whole again, and the other way round.
func TestTwoProcessesPartitionOneGPU(t *testing.T) {
	r := newRig(t, "h100x8")
	one, two := r.start(t), r.start(t)
	part := claimOf("part", share("gpu", "gpu-0-mig-1g-10gb-0", "s1", "1Gi", "0"))
	other := claimOf("other", share("gpu", "gpu-0-mig-1g-10gb-0", "s2", "1Gi", "0"))
	all := claimOf("all", whole("gpu", "gpu-0"))
	mustPrepare(t, one, part)
	mustPrepare(t, two, other)
	if made := r.hardware.mig(h100GPU0).Partitions; len(made) != 1 {
		t.Errorf("for two shares of one partition there are %v", made)
	}
	for _, d := range []*Driver{one, two} {
		if _, err := prepare(t, d, all); err == nil {
			t.Error("the GPU is given out beside its partition")
		}
	}
	if err := unprepare(t, two, part); err != nil {
		t.Fatal(err)
	}
	if err := unprepare(t, one, other); err != nil {
		t.Fatal(err)
	}
	mustPrepare(t, two, all)
	settleAll(t, one)
	checkInvariant(t, one)
	checkInvariant(t, two)
}

// A discovery that was under way while another process made a partition may know nothing of it.
func TestDiscoveryIsStaleAfterAnotherProcessPartitions(t *testing.T) {
	r := newRig(t, "h100x8")
	one, two := r.start(t), r.start(t)
	before, err := one.partitionChanges()
	if err != nil {
		t.Fatal(err)
	}
	n, _, err := one.ask()
	if err != nil {
		t.Fatal(err)
	}
	mustPrepare(t, two, claimOf("part", share("gpu", "gpu-0-mig-1g-10gb-0", "s1", "1Gi", "0")))
	settleAll(t, one)
	if one.found(quiet(t), before, n, nil, nil) {
		t.Error("what was asked before is taken for what is now")
	}
	checkInvariant(t, one)
}

// A process may be killed after any effect, while another one lives: that one goes on with what is left.
func TestAProcessDiesBesideAnother(t *testing.T) {
	claim := crashClaim()
	for k := range 4 {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprintf("after effect %d, undone %t", k, undo), func(t *testing.T) {
				r := newRig(t, "h100x8")
				r.allocate(t, claim)
				one, two := r.start(t), r.start(t)
				if undo {
					mustPrepare(t, two, claim)
				}
				if err := one.exclusively(func() error { return dieAt(one, claim, k, undo) }); err != nil {
					t.Fatal(err)
				}
				if undo && k < 4 {
					two.reconcile(quiet(t)) // the kubelet has not heard of an end
				}
				mustPrepare(t, two, claim)
				checkInvariant(t, two)
				if err := unprepare(t, two, claim); err != nil {
					t.Fatal(err)
				}
				checkInvariant(t, two)
				nothingLeft(t, r)
			})
		}
	}
}

// dieAt does the first k things of a prepare or unprepare.
func dieAt(d *Driver, claim *resourceapi.ResourceClaim, k int, undo bool) error {
	if undo {
		return run(context.Background(), d.undoing(string(claim.UID))[:k])
	}
	planned, err := d.accept(claim)
	if err != nil {
		return err
	}
	if err := d.reserve(planned); err != nil {
		return err
	}
	return run(context.Background(), d.effects(planned, d.makeReady)[:k])
}
