package driver

import (
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/quota"
)

var update = flag.Bool("update", false, "rewrite the newest golden files")

// formats has a folder for each version of what a plugin keeps on disk over upgrades. Those of earlier versions are never
// changed: nodes have such files.
const formats = "testdata/formats"

// kept is one of everything.
var kept = struct {
	records  []record
	patients map[string]patient
	slots    []slot
}{
	records: []record{
		{Version: 1, UID: "3c1e6a52-7d80-4b43-9a51-000000000001", Namespace: "default", Name: "shares", Allocations: []allocation{
			{Request: "gpu/large", Pool: "node/gpus", Device: "gpu-0", GPU: h100GPU0, ShareID: "5e8f9a10-0000-4000-8000-000000000001",
				Limits: quota.Limits{MemoryBytes: 20 << 30, CorePercent: 30, CorePolicy: v1alpha1.CoreBurst, Priority: 1}},
			{Request: "monitor", Pool: "node/gpus", Device: "gpu-1", GPU: h100GPU1, AdminAccess: true},
		}},
		{Version: 1, UID: "3c1e6a52-7d80-4b43-9a51-000000000002", Namespace: "default", Name: "partition", Allocations: []allocation{
			{Request: "gpu", Pool: "node/gpus", Device: "gpu-0-mig-1g-10gb-4", GPU: h100GPU0,
				Partition: &partition{Profile: "1g.10gb", Placement: gpu.Placement{Start: 4, Size: 1}, MemoryBytes: 9728 << 20}, Limits: quota.Limits{Whole: true, MemoryBytes: 9728 << 20, CorePercent: 100}},
		}},
	},
	patients: map[string]patient{h100GPU0: {
		Device: gpu.Device{UUID: h100GPU0, ProductName: "NVIDIA H100 80GB HBM3"}, Silent: true,
		Ailments: []ailment{{Fault: gpu.XID(79), Since: time.Unix(1700000000, 0).UTC(), Last: time.Unix(1700000060, 0).UTC(), Told: true}},
	}},
	slots: []slot{{gpu: h100GPU0, profile: "1g.10gb", placement: gpu.Placement{Start: 4, Size: 1}}},
}

// on returns what reads and writes a folder as a plugin does its own, on a node that was started once.
func on(dir string) (records, marks, *health) {
	nothing := func() error { return nil }
	h := newHealth(filepath.Join(dir, "health.json"), time.Minute)
	h.start = func() string { return "boot" }
	return records{filepath.Join(dir, "claims"), nothing}, marks{filepath.Join(dir, "partitions"), "boot", nothing}, h
}

// keep writes one of everything.
func keep(t *testing.T, dir string) {
	t.Helper()
	records, marks, health := on(dir)
	for _, r := range kept.records {
		if err := records.write(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range kept.slots {
		if err := marks.add(s); err != nil {
			t.Fatal(err)
		}
	}
	health.started, health.patients = "boot", kept.patients
	if err := health.save(); err != nil {
		t.Fatal(err)
	}
}

// What this version writes is what the newest golden files have: a difference here is one to whoever is downgraded to the
// version before.
func TestFormatsAreWhatTheyWere(t *testing.T) {
	versions, err := filepath.Glob(formats + "/*")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		keep(t, slices.Max(append(versions, formats+"/1")))
		return
	}
	written := t.TempDir()
	keep(t, written)
	golden := slices.Max(versions)
	if diff := cmp.Diff(list(t, golden), list(t, written)); diff != "" {
		t.Errorf("files (-golden +written):\n%s", diff)
	}
	for _, path := range list(t, written) {
		if diff := cmp.Diff(read(t, filepath.Join(golden, path)), read(t, filepath.Join(written, path))); diff != "" {
			t.Errorf("%s (-golden +written):\n%s", path, diff)
		}
	}
}

// This version reads what all versions wrote.
func TestFormatsOfAllVersionsAreRead(t *testing.T) {
	versions, err := filepath.Glob(formats + "/*")
	if err != nil || len(versions) == 0 {
		t.Fatalf("there are no golden files: %v", err)
	}
	for _, dir := range versions {
		records, marks, health := on(dir)
		for _, want := range kept.records {
			got, err := records.read(string(want.UID))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: record (-want +got):\n%s", dir, diff)
			}
		}
		ours, err := marks.load()
		if err != nil || len(ours) != len(kept.slots) || !ours[kept.slots[0]] {
			t.Errorf("%s: marked are %v, %v", dir, ours, err)
		}
		if err := health.load(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(kept.patients, health.patients); diff != "" {
			t.Errorf("%s: health (-want +got):\n%s", dir, diff)
		}
	}
}

// A field that a later plugin added under the same version is passed over.
func TestFieldsOfALaterPluginArePassedOver(t *testing.T) {
	records, _, _ := on(t.TempDir())
	if err := records.write(kept.records[0]); err != nil {
		t.Fatal(err)
	}
	path := records.path(string(kept.records[0].UID))
	write(t, path, strings.Replace(read(t, path), `"version"`, `"later": {"a": 1}, "version"`, 1))
	got, err := records.read(string(kept.records[0].UID))
	if diff := cmp.Diff(kept.records[0], got); diff != "" || err != nil {
		t.Errorf("%v, record (-want +got):\n%s", err, diff)
	}
}

// After a downgrade there may be records of a version that this plugin does not know: they stay, what is understood of
// them is not given out again, and whoever wants something of such a claim is told.
func TestRecordsOfALaterVersionAreKept(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"with more": func(record string) string { return strings.Replace(record, `"request"`, `"later": true, "request"`, 1) },
		"with other": func(record string) string {
			return strings.Replace(record, `"namespace": "default"`, `"namespace": 7`, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			claim := claimOf("c", share("gpu", "gpu-0", "s1", "70Gi", "0"))
			d := r.start(t)
			mustPrepare(t, d, claim)
			later := change(strings.Replace(read(t, d.records.path("c-uid")), `"version": 1`, `"version": 2`, 1))
			write(t, d.records.path("c-uid"), later)
			before := append(list(t, r.config.Layout.SharesDir), list(t, r.config.Layout.SpecDir)...)

			d = r.start(t) // the API does not have the claim any more
			d.reconcile(quiet(t))
			_, prepared := prepare(t, d, claim)
			for what, err := range map[string]error{"prepare": prepared, "unprepare": unprepare(t, d, claim)} {
				if err == nil || !strings.Contains(err.Error(), "claim c-uid was prepared by a newer plugin: its record is of version 2, this plugin knows 1") {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, err := prepare(t, d, claimOf("d", share("gpu", "gpu-0", "s2", "20Gi", "0"))); err == nil {
				t.Error("what the record holds is given out again")
			}
			if now := read(t, d.records.path("c-uid")); now != later {
				t.Errorf("the record is now %s", now)
			}
			if after := append(list(t, r.config.Layout.SharesDir), list(t, r.config.Layout.SpecDir)...); !slices.Equal(before, after) {
				t.Errorf("files before: %v, after: %v", before, after)
			}
			told := slices.DeleteFunc(r.told(), func(note string) bool { return !strings.Contains(note, "RecordNewer") })
			if len(told) != 1 {
				t.Errorf("told: %v", told)
			}
			if _, booked := d.booked[types.UID("c-uid")]; !booked {
				t.Error("the claim is not booked")
			}
		})
	}
}
