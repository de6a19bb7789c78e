package driver

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/quota"
)

func TestRecordsOutliveTheProcess(t *testing.T) {
	rs := records{dir: t.TempDir() + "/claims", changing: func() error { return nil }}
	want := record{Version: 1, UID: "uid", Namespace: "default", Name: "c", Allocations: []allocation{
		{Request: "gpu/a", Pool: "node/gpus", Device: "gpu-0", GPU: "GPU-0", ShareID: "s1", Limits: quota.Limits{MemoryBytes: 1<<64 - 1, CorePercent: 100, CorePolicy: v1alpha1.CoreFixed, Priority: -1}},
		{Request: "b", Pool: "node/gpus", Device: "gpu-1", GPU: "GPU-1", AdminAccess: true, Limits: quota.Limits{Whole: true}},
	}}
	for range 2 {
		if err := rs.write(want); err != nil {
			t.Fatal(err)
		}
		got, err := rs.read("uid")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{"uid.json"}, list(t, rs.dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// FuzzRecord reads records from anywhere: it never panics, and what it accepts is a record that can be written again.
func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(record{Version: 1, UID: "c-uid", Name: "c", Allocations: []allocation{{Request: "gpu", ShareID: "s1"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"allocations":[],"UID":"é\ud800"}`))
	for _, corruption := range corruptions {
		f.Add([]byte(corruption.spoil(string(good))))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := decodeRecord(data)
		if err != nil {
			return
		}
		again, err := json.MarshalIndent(first, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		second, err := decodeRecord(again)
		if err != nil {
			t.Fatalf("%s was accepted, but not when written again: %v", data, err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s (-first +second):\n%s", data, diff)
		}
		_, _ = first.shares(), first.prepared(node{}, node{})
	})
}
