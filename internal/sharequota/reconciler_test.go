package sharequota

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// clock is a reconciler's time.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func newReconciler(c client.Client) (*Reconciler, *clock, *events.FakeRecorder) {
	recorder := events.NewFakeRecorder(10)
	r := NewReconciler(newLedger(c), recorder)
	at := &clock{time.Now()}
	r.now = at.now
	return r, at, recorder
}

func mustReconcile(t *testing.T, r *Reconciler, name string) reconcile.Result {
	t.Helper()
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestReconcileCountsWhatIsStored(t *testing.T) {
	c := store(t, quotaOf("team-a", "100Gi", 0))
	r, _, _ := newReconciler(c)
	claim := claimOf("a", "10Gi")
	mustReserve(t, r.ledger, claim)
	mustReconcile(t, r, "team-a")
	wantUsed(t, c, "team-a", "10Gi", 1, 1) // not stored yet
	if err := c.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	mustReconcile(t, r, "team-a")
	wantUsed(t, c, "team-a", "10Gi", 1, 0)
	if hard := statusOf(t, c, "team-a").Hard; hard.Memory.String() != "100Gi" {
		t.Errorf("status.hard has %s", hard.Memory.String())
	}
	if err := c.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	mustReconcile(t, r, "team-a")
	wantUsed(t, c, "team-a", "0", 0, 0)
}

func TestReconcileWithoutTotals(t *testing.T) {
	quota := quotaOf("team-a", "", 0)
	quota.Spec.Hard = nil
	c := store(t, quota, claimOf("a", "10Gi"))
	r, _, _ := newReconciler(c)
	mustReconcile(t, r, "team-a")
	wantUsed(t, c, "team-a", "10Gi", 1, 0)
}

// The time at which a reservation ends is that of who takes it away, however wrong the clock of who made it was.
func TestReservationsEnd(t *testing.T) {
	c := store(t, quotaOf("team-a", "100Gi", 0))
	r, clock, _ := newReconciler(c)
	mustReserve(t, r.ledger, claimOf("refused-afterwards", "10Gi"))
	clock.Time = clock.AddDate(1, 0, 0)
	if result := mustReconcile(t, r, "team-a"); result.RequeueAfter != Lifetime {
		t.Errorf("looks again after %s, want %s", result.RequeueAfter, Lifetime)
	}
	clock.Time = clock.Add(Lifetime - time.Second)
	if result := mustReconcile(t, r, "team-a"); result.RequeueAfter != time.Second {
		t.Errorf("looks again after %s, want 1s", result.RequeueAfter)
	}
	wantUsed(t, c, "team-a", "10Gi", 1, 1)
	clock.Time = clock.Add(time.Second)
	if result := mustReconcile(t, r, "team-a"); result.RequeueAfter != resync {
		t.Errorf("looks again after %s, want %s", result.RequeueAfter, resync)
	}
	wantUsed(t, c, "team-a", "0", 0, 0)
	if len(r.seen[client.ObjectKey{Namespace: "team-a", Name: "team-a"}]) != 1 {
		t.Error("the last look is not what is remembered")
	}
	mustReconcile(t, r, "team-a")
	if seen := r.seen[client.ObjectKey{Namespace: "team-a", Name: "team-a"}]; len(seen) != 0 {
		t.Errorf("remembers %v for ever", seen)
	}
}

// A create that was let in may take until the API server gives it up: requestTimeoutUpperBound in
// apiserver/pkg/endpoints/handlers/rest.go.
func TestReservationsOutlastACreate(t *testing.T) {
	c := store(t, quotaOf("team-a", "100Gi", 0))
	r, clock, _ := newReconciler(c)
	claim := claimOf("slow", "10Gi")
	mustReserve(t, r.ledger, claim)
	mustReconcile(t, r, "team-a")
	clock.Time = clock.Add(2 * 34 * time.Second)
	mustReconcile(t, r, "team-a")
	wantUsed(t, c, "team-a", "10Gi", 1, 1)
}

func TestExceeded(t *testing.T) {
	const text = `namespace team-a uses 20Gi of GPU memory, ShareQuota "team-a" allows 15Gi: no new claims until it has less; what runs is left alone`
	slipped := claimOf("slipped-in", "20Gi")
	c := store(t, quotaOf("team-a", "15Gi", 0), slipped)
	r, _, recorder := newReconciler(c)
	for range 3 {
		mustReconcile(t, r, "team-a")
	}
	condition := meta.FindStatusCondition(statusOf(t, c, "team-a").Conditions, v1alpha1.ConditionExceeded)
	if condition == nil || condition.Status != metav1.ConditionTrue || condition.Message != text {
		t.Errorf("the condition is %+v", condition)
	}
	if got := <-recorder.Events; !strings.HasSuffix(got, text) || !strings.HasPrefix(got, "Warning Exceeded ") {
		t.Errorf("the event says %q", got)
	}
	if len(recorder.Events) != 0 {
		t.Errorf("the same is told again: %q", <-recorder.Events)
	}
	wantRefusal(t, r.ledger.Reserve(t.Context(), claimOf("b", "1Gi"), false),
		`namespace team-a would use 21Gi of GPU memory, ShareQuota "team-a" allows 15Gi (20Gi are used): ask for less, or free a share`)
	if err := c.Delete(t.Context(), slipped); err != nil {
		t.Fatal(err)
	}
	mustReconcile(t, r, "team-a")
	if meta.IsStatusConditionTrue(statusOf(t, c, "team-a").Conditions, v1alpha1.ConditionExceeded) {
		t.Error("the condition stays")
	}
}

func TestMetrics(t *testing.T) {
	c := store(t, quotaOf("measured", "15Gi", 3), claimOf("a", "10Gi"))
	r, _, _ := newReconciler(c)
	mustReconcile(t, r, "measured")
	want := map[string]float64{"used memory": float64(10 * gi), "used cores": 0, "used shares": 1, "hard memory": float64(15 * gi), "hard shares": 3}
	got := gauges(t, "measured")
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %f, want %f", name, got[name], value)
		}
	}
	if err := c.Delete(t.Context(), quotaOf("measured", "", 0)); err != nil {
		t.Fatal(err)
	}
	mustReconcile(t, r, "measured")
	if got := gauges(t, "measured"); len(got) != 0 {
		t.Errorf("of a quota that is gone there is still %v", got)
	}
}

// gauges are those of one quota, by gauge and resource.
func gauges(t *testing.T, quota string) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for name, gauge := range map[string]*prometheus.GaugeVec{"used": used, "hard": hard} {
		metrics := make(chan prometheus.Metric, 100)
		gauge.Collect(metrics)
		close(metrics)
		for metric := range metrics {
			var written dto.Metric
			if err := metric.Write(&written); err != nil {
				t.Fatal(err)
			}
			labels := map[string]string{}
			for _, label := range written.Label {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["sharequota"] == quota {
				found[name+" "+labels["resource"]] = written.Gauge.GetValue()
			}
		}
	}
	return found
}
