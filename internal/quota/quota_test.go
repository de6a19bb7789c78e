package quota

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
)

const gi = 1 << 30

// h100 can give out 80 GiB and keeps 1 MiB and a byte for itself, so that what is left is no multiple of the step.
var h100 = gpu.Device{Index: 0, UUID: "GPU-0", MemoryTotal: 80*gi + 1<<20 + 1, MemoryReserved: 1 << 20}

func TestForTakesWhatTheSchedulerGranted(t *testing.T) {
	whole := Limits{Whole: true, MemoryBytes: 80 * gi, CorePercent: 100}
	tests := map[string]struct {
		consumed map[resourceapi.QualifiedName]resource.Quantity
		noShare  bool
		want     Limits
		wantErr  string
	}{
		"memory and cores":        {consumed: consumed("memory", "10Gi", "cores", "30"), want: Limits{MemoryBytes: 10 * gi, CorePercent: 30, CorePolicy: v1alpha1.CoreFixed}},
		"under the domain":        {consumed: consumed("gpu.aliquot.dev/memory", "10Gi", "gpu.aliquot.dev/cores", "30"), want: Limits{MemoryBytes: 10 * gi, CorePercent: 30, CorePolicy: v1alpha1.CoreFixed}},
		"best effort cores":       {consumed: consumed("memory", "10Gi", "cores", "0"), want: Limits{MemoryBytes: 10 * gi, CorePolicy: v1alpha1.CoreFixed}},
		"no word of cores":        {consumed: consumed("memory", "10Gi"), want: Limits{MemoryBytes: 10 * gi, CorePolicy: v1alpha1.CoreFixed}},
		"all memory is whole":     {consumed: consumed("memory", "80Gi", "cores", "0"), want: whole},
		"all of both is whole":    {consumed: consumed("memory", "80Gi", "cores", "100"), want: whole},
		"all memory, some cores":  {consumed: consumed("memory", "80Gi", "cores", "30"), want: Limits{MemoryBytes: 80 * gi, CorePercent: 30, CorePolicy: v1alpha1.CoreFixed}},
		"no consumed capacity":    {want: whole},
		"no shareID":              {consumed: consumed("memory", "10Gi"), noShare: true, want: whole},
		"zero memory":             {consumed: consumed("memory", "0"), wantErr: "consumedCapacity[memory] is 0: want a positive number of bytes"},
		"negative memory":         {consumed: consumed("memory", "-1Gi"), wantErr: "consumedCapacity[memory] is -1Gi: want a positive number"},
		"fractional memory":       {consumed: consumed("memory", "1500m"), wantErr: "consumedCapacity[memory] is 1500m"},
		"memory beyond the GPU":   {consumed: consumed("memory", "81Gi"), wantErr: "gpu-0 has 85899345920; delete the claim"},
		"memory beyond an int64":  {consumed: consumed("memory", "100Ei"), wantErr: "consumedCapacity[memory]"},
		"cores beyond the GPU":    {consumed: consumed("memory", "1Gi", "cores", "101"), wantErr: "consumedCapacity[cores] is 101: want a whole percentage from 0 to 100"},
		"negative cores":          {consumed: consumed("memory", "1Gi", "cores", "-1"), wantErr: "consumedCapacity[cores] is -1"},
		"fractional cores":        {consumed: consumed("memory", "1Gi", "cores", "500m"), wantErr: "consumedCapacity[cores] is 500m"},
		"cores beyond an integer": {consumed: consumed("memory", "1Gi", "cores", "100Ei"), wantErr: "consumedCapacity[cores]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			result := resourceapi.DeviceRequestAllocationResult{Device: "gpu-0", ShareID: ptr.To(types.UID("share")), ConsumedCapacity: tc.consumed}
			if tc.noShare {
				result.ShareID = nil
			}
			got, err := For(result, h100.Allocatable(1<<20))
			if !matches(err, tc.wantErr) {
				t.Fatalf("got error %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLedgerRefusesOvercommitment(t *testing.T) {
	type booking struct {
		claim  types.UID
		shares []Share
	}
	share := func(memory uint64, cores int) Share {
		return Share{GPU: "a", Limits: Limits{MemoryBytes: memory, CorePercent: cores}}
	}
	whole := Share{GPU: "a", Limits: Limits{Whole: true, MemoryBytes: 100, CorePercent: 100}}
	part := func(name string, start, size int, limits Limits) Share {
		return Share{GPU: "a", Limits: limits, Partition: &Partition{Name: name, Placement: gpu.Placement{Start: start, Size: size}, MemoryBytes: 10}}
	}
	wholePart, tenth := Limits{Whole: true, MemoryBytes: 10, CorePercent: 100}, Limits{MemoryBytes: 1, CorePercent: 10}
	tests := map[string]struct {
		before  []booking
		shares  []Share
		wantErr string
	}{
		"fits exactly":                   {before: []booking{{"x", []Share{share(60, 50)}}}, shares: []Share{share(40, 50)}},
		"a byte too much":                {before: []booking{{"x", []Share{share(60, 0)}}}, shares: []Share{share(41, 0)}, wantErr: "would give out 101 of 100 bytes and 0 of 100 percent, claims [x] hold it"},
		"a percent too much":             {before: []booking{{"x", []Share{share(1, 60)}}}, shares: []Share{share(1, 41)}, wantErr: "101 of 100 percent"},
		"own shares add up":              {shares: []Share{share(60, 0), share(41, 0)}, wantErr: "101 of 100 bytes"},
		"one share too big":              {shares: []Share{share(101, 0)}, wantErr: "101 of 100 bytes"},
		"whole alone":                    {shares: []Share{whole}},
		"whole beside a share":           {before: []booking{{"x", []Share{share(1, 0)}}}, shares: []Share{whole}, wantErr: "whole and shared at once, claims [x] hold it"},
		"a share beside whole":           {before: []booking{{"x", []Share{whole}}}, shares: []Share{share(1, 0)}, wantErr: "whole and shared at once"},
		"another GPU does not count":     {before: []booking{{"x", []Share{{GPU: "b", Limits: Limits{MemoryBytes: 100}}}}}, shares: []Share{share(100, 0)}},
		"the same claim again":           {before: []booking{{"claim", []Share{share(100, 100)}}}, shares: []Share{share(100, 100)}},
		"partitions beside each other":   {before: []booking{{"x", []Share{part("p0", 0, 4, wholePart)}}}, shares: []Share{part("p4", 4, 4, wholePart)}},
		"partitions that overlap":        {before: []booking{{"x", []Share{part("p0", 0, 4, tenth)}}}, shares: []Share{part("p3", 3, 1, tenth)}, wantErr: "partitions p0 and p3 of GPU a would overlap, claims [x] hold it"},
		"own partitions overlap":         {shares: []Share{part("p0", 0, 1, tenth), part("q0", 0, 2, tenth)}, wantErr: "partitions p0 and q0 of GPU a would overlap"},
		"a share beside a partition":     {before: []booking{{"x", []Share{part("p0", 0, 1, tenth)}}}, shares: []Share{share(1, 0)}, wantErr: "one GPU, one mode: GPU a would be shared and partitioned at once, claims [x] hold it"},
		"a partition beside a share":     {before: []booking{{"x", []Share{share(1, 0)}}}, shares: []Share{part("p0", 0, 1, tenth)}, wantErr: "one GPU, one mode"},
		"a partition is shared":          {before: []booking{{"x", []Share{part("p0", 0, 1, tenth)}}}, shares: []Share{part("p0", 0, 1, Limits{MemoryBytes: 9, CorePercent: 90})}},
		"a partition has its own memory": {before: []booking{{"x", []Share{part("p0", 0, 1, tenth)}}}, shares: []Share{part("p0", 0, 1, Limits{MemoryBytes: 10})}, wantErr: "partition p0 of GPU a would give out 11 of 10 bytes"},
		"a partition has its own cores":  {before: []booking{{"x", []Share{part("p0", 0, 1, tenth)}}}, shares: []Share{part("p0", 0, 1, Limits{MemoryBytes: 1, CorePercent: 91})}, wantErr: "101 of 100 percent"},
		"a partition whole and shared":   {before: []booking{{"x", []Share{part("p0", 0, 1, wholePart)}}}, shares: []Share{part("p0", 0, 1, tenth)}, wantErr: "partition p0 of GPU a would be whole and shared at once"},
		"unknown GPU":                    {shares: []Share{{GPU: "c"}}, wantErr: "GPU c is not on this node"},
		"all or none":                    {shares: []Share{{GPU: "b", Limits: Limits{MemoryBytes: 1}}, share(101, 0)}, wantErr: "101 of 100 bytes"},
		"nothing fits beside a doubling": {before: []booking{{"x", []Share{share(90, 0)}}, {"y", []Share{share(90, 0)}}}, shares: []Share{share(1, 0)}, wantErr: "claims [x y] hold it"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := NewLedger()
			l.SetGPU("a", 100)
			l.SetGPU("b", 100)
			for _, b := range tc.before {
				l.Adopt(b.claim, b.shares)
			}
			held := l.Shares("claim")
			err := l.Reserve("claim", tc.shares)
			if !matches(err, tc.wantErr) {
				t.Fatalf("got error %v, want %q", err, tc.wantErr)
			}
			want := tc.shares
			if err != nil {
				want = held
			}
			if diff := cmp.Diff(want, l.Shares("claim")); diff != "" {
				t.Errorf("what the claim holds afterwards (-want +got):\n%s", diff)
			}
			l.Release("claim")
			if got := l.Shares("claim"); len(got) > 0 {
				t.Errorf("after release the claim holds %v", got)
			}
		})
	}
}

func TestCheckNamesTheOvercommittedGPU(t *testing.T) {
	l := NewLedger()
	l.SetGPU("a", 100)
	l.SetGPU("b", 100)
	l.Adopt("x", []Share{{GPU: "a", Limits: Limits{MemoryBytes: 60}}})
	if err := l.Check(); err != nil {
		t.Fatalf("60 of 100 bytes: %v", err)
	}
	l.Adopt("y", []Share{{GPU: "a", Limits: Limits{MemoryBytes: 60}}, {GPU: "b", Limits: Limits{MemoryBytes: 100}}})
	if err := l.Check(); !matches(err, "GPU a would give out 120 of 100 bytes") || strings.Contains(err.Error(), "GPU b") {
		t.Errorf("got %v, want an error for GPU a only", err)
	}
}

func consumed(pairs ...string) map[resourceapi.QualifiedName]resource.Quantity {
	m := map[resourceapi.QualifiedName]resource.Quantity{}
	for i := 0; i < len(pairs); i += 2 {
		m[resourceapi.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return m
}

// matches says whether err is nil where no text is wanted, and contains the text where one is.
func matches(err error, want string) bool {
	if want == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), want)
}
