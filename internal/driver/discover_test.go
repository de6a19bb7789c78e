package driver

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSkippedGPUsAreToldOnce(t *testing.T) {
	r := newRig(t, "h100x8")
	all := r.hardware.devices
	r.hardware.devices = all[:6]
	r.hardware.skipped = []error{errors.New("gpu-6: in MIG mode"), errors.New("gpu-7: no UUID")}
	d := r.start(t)
	steps := []struct {
		name   string
		change func()
		want   []string
	}{
		{"found first", func() {}, []string{"Warning GPUNotPublished gpu-6: in MIG mode", "Warning GPUNotPublished gpu-7: no UUID"}},
		{"nothing changed", func() {}, nil},
		{"one for another reason", func() { r.hardware.skipped[1] = errors.New("gpu-7: is lost") }, []string{"Warning GPUNotPublished gpu-7: is lost"}},
		{"one is back", func() { r.hardware.devices, r.hardware.skipped = all[:7], r.hardware.skipped[1:] }, nil},
		{"skipped again", func() {
			r.hardware.devices, r.hardware.skipped = all[:6], append(r.hardware.skipped, errors.New("gpu-6: in MIG mode"))
		}, []string{
			"Warning GPULost GPU " + all[6].UUID + " does not answer any more and is withdrawn; its pods keep it until they end",
			"Warning GPUNotPublished gpu-6: in MIG mode",
		}},
	}
	for i, step := range steps {
		step.change()
		if i > 0 { // start has discovered already
			if err := d.discover(quiet(t)); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(step.want, r.told()); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestVanishedGPU(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	held, gone := claimOf("held", share("gpu", "gpu-7", "s1", "10Gi", "0")), claimOf("gone", share("gpu", "gpu-7", "s2", "10Gi", "0"))
	r.allocate(t, held, gone)
	mustPrepare(t, d, held)
	uuid := r.hardware.devices[7].UUID
	r.hardware.devices = r.hardware.devices[:7]
	for range 2 {
		if err := d.discover(quiet(t)); err != nil {
			t.Fatal(err)
		}
		d.reconcile(quiet(t))
	}
	if diff := cmp.Diff([]string{
		"Warning GPULost GPU " + uuid + " does not answer any more and stays published as unhealthy; its pods keep it until they end",
		"Warning GPUUnhealthy GPU " + uuid + ": it does not answer now; it has taint gpu.aliquot.dev/unhealthy=silent:NoSchedule",
	}, r.told()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if _, err := prepare(t, d, gone); err == nil || !strings.Contains(err.Error(), `device "gpu-7" is not on this node now`) {
		t.Errorf("got error %v", err)
	}
	checkInvariant(t, d)
	if err := unprepare(t, d, held); err != nil {
		t.Fatal(err)
	}
	checkInvariant(t, d)
}

func TestNodeWithoutGPUsIsToldOnce(t *testing.T) {
	r := newRig(t, "h100x8")
	r.hardware.devices = nil
	d := r.start(t)
	for range 2 {
		if err := d.discover(quiet(t)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"Warning NoGPU NVML found no GPU that can be shared; the node publishes none"}, r.told()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

func TestLongEventsAreCut(t *testing.T) {
	r := newRig(t, "h100x8")
	r.hardware.err = errors.New(strings.Repeat("ä", 2000))
	r.start(t)
	told := r.told()
	if len(told) != 1 {
		t.Fatalf("got %d Events, want one", len(told))
	}
	note := strings.TrimPrefix(told[0], "Warning DiscoveryFailed ")
	if len(note) > 1024 || len(note) < 1000 || strings.ToValidUTF8(note, "") != note {
		t.Errorf("the note has %d bytes: %q", len(note), note)
	}
}
