package driver

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/quota"
	"aliquot.dev/aliquot/internal/usage"
)

// fakeProcesses answers as it is told.
type fakeProcesses struct {
	mu        sync.Mutex
	processes []gpu.Process
	err       error
}

func (p *fakeProcesses) Processes(string) ([]gpu.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.processes, p.err
}

func (p *fakeProcesses) Utilization(string, uint64) ([]gpu.Utilization, error) { return nil, nil }

func (p *fakeProcesses) Release() {}

// page is a number that the agent page of a claim's only share says.
func (r *rig) page(t testing.TB, claim *resourceapi.ResourceClaim, field string) uint32 {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(r.config.Layout.SharesDir, string(claim.UID), "*", "agent"))
	if err != nil || len(pages) != 1 {
		t.Fatalf("claim %s has agent pages %v, %v", claim.Name, pages, err)
	}
	golden := read(t, filepath.Join("..", "..", "cdi", "preload", "testdata", "abi.golden"))
	_, after, _ := strings.Cut(golden, "\naq_agent."+field+" ")
	at, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint32([]byte(read(t, pages[0]))[at:])
}

func TestFirstPageSaysContextsAndBestEffortCores(t *testing.T) {
	r := newRig(t, "h100x8")
	r.config.ContextMiB = 300
	d := r.start(t)
	granted := claimOf("granted", share("gpu", "gpu-0", "s1", "1Gi", "30"))
	first := claimOf("first", share("gpu", "gpu-0", "s2", "1Gi", "0"))
	second := claimOf("second", share("gpu", "gpu-0", "s3", "1Gi", "0"))
	elsewhere := claimOf("elsewhere", share("gpu", "gpu-1", "s4", "1Gi", "0"))
	for _, claim := range []*resourceapi.ResourceClaim{granted, first, second, elsewhere} {
		mustPrepare(t, d, claim)
		if got := r.page(t, claim, "context_mib"); got != 300 {
			t.Errorf("%s: a context is charged %d MiB, want 300", claim.Name, got)
		}
	}
	for claim, want := range map[*resourceapi.ResourceClaim]uint32{granted: 0, first: 700, second: 350, elsewhere: 1000} {
		if got := r.page(t, claim, "core_permille"); got != want {
			t.Errorf("%s: page says %d permille, want %d", claim.Name, got, want)
		}
	}
}

// Those who measure know all that is booked, at any time, and nothing else.
func TestMeasuredSharesAreThoseBooked(t *testing.T) {
	r := newRig(t, "h100x8")
	r.config.Processes = &fakeProcesses{}
	d := r.start(t)
	check := func(d *Driver, want ...string) {
		t.Helper()
		defer d.measure(quiet(t))()
		for {
			var followed []string
			for _, u := range d.Shares() {
				followed = append(followed, u.Claim+" "+u.GPU[len(u.GPU)-1:]+" "+strconv.Itoa(u.CorePercent)+" "+u.Model)
			}
			if cmp.Equal(followed, want) {
				return
			}
			select {
			case <-t.Context().Done():
				t.Fatalf("measured are %q, want %q", followed, want)
			case <-time.After(time.Millisecond):
			}
		}
	}
	a := claimOf("a", share("gpu", "gpu-0", "s1", "1Gi", "30"))
	b := claimOf("b", share("gpu", "gpu-1", "s2", "1Gi", "0"), whole("more", "gpu-2"))
	r.allocate(t, a, b)
	mustPrepare(t, d, a)
	mustPrepare(t, d, b)
	check(d, "default/a 0 30 NVIDIA H100 80GB HBM3", "default/b 1 0 NVIDIA H100 80GB HBM3")
	d = r.start(t) // from the records
	check(d, "default/a 0 30 NVIDIA H100 80GB HBM3", "default/b 1 0 NVIDIA H100 80GB HBM3")
	if err := unprepare(t, d, a); err != nil {
		t.Fatal(err)
	}
	check(d, "default/b 1 0 NVIDIA H100 80GB HBM3")
	r.forget(t, b)
	d.reconcile(quiet(t))
	check(d)
}

func TestBurstIsRenderedAndMeasured(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	a := allocation{Request: "gpu", GPU: h100GPU0, ShareID: "s1", Limits: quota.Limits{MemoryBytes: 1 << 30, CorePercent: 30, CorePolicy: v1alpha1.CoreBurst}}
	claim := record{UID: "uid", Namespace: "default", Name: "a", Allocations: []allocation{a}}
	rendered, err := d.render(claim)
	if err != nil {
		t.Fatal(err)
	}
	if got := rendered.Devices[0].Quota.CorePolicy; got != "Burst" {
		t.Errorf("policy is %q, want Burst", got)
	}
	if got := d.shareOf(claim, a, a.GPU); !got.Burst || got.Dir != filepath.Join(r.config.Layout.SharesDir, "uid", h100GPU0+".s1") {
		t.Errorf("measured is %+v", got)
	}
}

func TestDegradedLimiterIsToldOnTheNode(t *testing.T) {
	r := newRig(t, "h100x8")
	r.config.Processes = &fakeProcesses{}
	d := r.start(t)
	claim := claimOf("a", share("gpu", "gpu-0", "s1", "1Gi", "30"))
	mustPrepare(t, d, claim)
	pages, _ := filepath.Glob(filepath.Join(r.config.Layout.SharesDir, "*", "*", "agent"))
	if err := os.Truncate(pages[0], 7); err != nil {
		t.Fatal(err)
	}
	r.told()
	stop := d.measure(quiet(t))
	defer stop()
	want := "Warning LimiterDegraded limiter degraded: share of claim default/a/gpu: " + pages[0] + " has 7 bytes, want 4096"
	if got := <-r.events.Events; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

var _ usage.Hardware = (*fakeProcesses)(nil)

// checkFollowed compares the shares that are measured, kept up claim by claim, with what the books say.
func checkFollowed(t *testing.T, d *Driver) {
	t.Helper()
	if d.followedAt != d.changes {
		return // partitions came or went: all are told anew at the next change
	}
	var want []usage.Share
	for _, uid := range slices.Sorted(maps.Keys(d.booked)) {
		want = append(want, d.sharesOf(d.booked[uid])...)
	}
	byDir := func(a, b usage.Share) int { return strings.Compare(a.Dir, b.Dir) }
	if diff := cmp.Diff(slices.SortedFunc(slices.Values(want), byDir), slices.SortedFunc(slices.Values(d.followed), byDir)); diff != "" {
		t.Errorf("shares that are measured (-booked +followed):\n%s", diff)
	}
}
