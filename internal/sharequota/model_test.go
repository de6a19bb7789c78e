package sharequota

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aliquot.dev/aliquot/api/v1alpha1"
)

var (
	seeds    = flag.Int("seeds", 12, "how many random histories the model test runs")
	fromSeed = flag.Uint64("seed", 1, "the first of them")
)

// model runs creates, deletes and recounts of several replicas at once on one store. Each of their calls to the API server
// waits until the test lets it go, one at a time and in random order, so that whatever can come between two calls does
// in some history. Time is synctest's.
type model struct {
	t       *testing.T
	random  *rand.Rand
	store   client.WithWatch // called directly
	calls   client.WithWatch // whose calls wait
	waiting chan chan struct{}
	running int
	done    chan struct{}
	claims  int
	hard    Amount
	let     map[types.UID]bool // claims that a ledger let in
	checked int                // how many of them there were at the last check

	leaders []*Reconciler // two that both believe to lead
	busy    []bool
}

func TestModel(t *testing.T) {
	for seed := *fromSeed; seed < *fromSeed+uint64(*seeds); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newModel(t, seed).run() })
		})
	}
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, random: rand.New(rand.NewPCG(seed, 0)), waiting: make(chan chan struct{}, 100), done: make(chan struct{}, 100), let: map[types.UID]bool{}}
	m.hard = Amount{Memory: 10 * gi, Shares: 6}
	m.store = store(t, quotaOf("team-a", "10Gi", 6), quotaOf("wide", "1Ti", 0))
	m.calls = interceptor.NewClient(m.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			m.wait()
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			m.wait()
			return c.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			m.wait()
			return c.Create(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			m.wait()
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	for range 2 {
		m.leaders = append(m.leaders, NewReconciler(newLedger(m.calls), events.NewFakeRecorder(1000)))
	}
	m.busy = make([]bool, len(m.leaders))
	return m
}

// wait is where a call stands until it is let go.
func (m *model) wait() {
	turn := make(chan struct{})
	m.waiting <- turn
	<-turn
}

// start runs one operation beside the others.
func (m *model) start(operation func()) {
	m.running++
	go func() {
		operation()
		m.done <- struct{}{}
	}()
}

func (m *model) run() {
	for range 1000 {
		switch n := m.random.IntN(100); {
		case n < 14 && m.running < 10:
			m.create()
		case n < 19:
			m.delete()
		case n < 26:
			m.recount(m.random.IntN(len(m.leaders)))
		case n < 31:
			// What is not slow is over in less time than that.
			for m.settle(); len(m.waiting) > 0; {
				m.step()
				m.check()
			}
			m.pass(time.Duration(m.random.IntN(15)) * time.Second)
		default:
			m.step()
		}
		m.check()
	}
	for m.settle(); m.running > 0; m.settle() {
		m.step()
		m.check()
	}
	m.quiet()
}

// settle waits until each operation stands at a call, sleeps or is over.
func (m *model) settle() {
	synctest.Wait()
	for len(m.done) > 0 {
		<-m.done
		m.running--
	}
}

// step lets one call go, or time pass if all sleep.
func (m *model) step() {
	m.settle()
	if n := len(m.waiting); n > 0 {
		for range m.random.IntN(n) {
			m.waiting <- <-m.waiting
		}
		close(<-m.waiting)
		m.settle()
		return
	}
	m.pass(10 * time.Millisecond)
}

func (m *model) pass(d time.Duration) {
	<-time.After(d)
	m.settle()
}

// create is a request of a user. Some are refused by another plugin after the claim was let in, and all end with the time that
// the API server gives them.
func (m *model) create() {
	m.claims++
	name := fmt.Sprint("claim-", m.random.IntN(12))
	memory := fmt.Sprint(1+m.random.IntN(4), "Gi")
	refusedAfterwards := m.random.IntN(12) == 0
	slow := time.Duration(m.random.IntN(4)/3*m.random.IntN(34)) * time.Second // until it is stored
	claim := claimOf(name, memory)
	claim.UID = types.UID(fmt.Sprint("uid-", m.claims))
	l := newLedger(m.calls) // a replica for each: one lets its claims wait for each other
	m.start(func() {
		ctx, cancel := context.WithTimeout(m.t.Context(), 34*time.Second)
		defer cancel()
		if err := l.Reserve(ctx, claim, false); err != nil || refusedAfterwards {
			return
		}
		<-time.After(slow)
		m.wait()
		if ctx.Err() != nil {
			return
		}
		if m.store.Create(ctx, claim) == nil {
			m.let[claim.UID] = true
		}
	})
}

func (m *model) delete() {
	var claims resourceapi.ResourceClaimList
	if err := m.store.List(m.t.Context(), &claims); err != nil {
		m.t.Fatal(err)
	}
	if n := len(claims.Items); n > 0 {
		if err := m.store.Delete(m.t.Context(), &claims.Items[m.random.IntN(n)]); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *model) recount(leader int) {
	if m.busy[leader] {
		return // a controller reconciles one quota once at a time
	}
	m.busy[leader] = true
	m.start(func() {
		defer func() { m.busy[leader] = false }()
		for _, name := range []string{"team-a", "wide"} {
			if _, err := m.leaders[leader].Reconcile(m.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: name}}); err != nil {
				m.t.Error(err)
			}
		}
	})
}

// check is the invariant: what is stored fits.
func (m *model) check() {
	if len(m.let) == m.checked {
		return // nothing was stored since
	}
	m.checked = len(m.let)
	if stored := m.stored(); stored.Memory > m.hard.Memory || stored.Shares > m.hard.Shares {
		m.t.Fatalf("%+v are stored, hard is %+v", stored, m.hard)
	}
}

func (m *model) stored() (total Amount) {
	var claims resourceapi.ResourceClaimList
	if err := m.store.List(m.t.Context(), &claims); err != nil {
		m.t.Fatal(err)
	}
	for i := range claims.Items {
		if !m.let[claims.Items[i].UID] {
			m.t.Errorf("claim %s is stored although it was not let in", claims.Items[i].UID)
		}
		total = total.plus(Claim(&claims.Items[i], largest, ours))
	}
	return total
}

// quiet is what must come out when nothing happens any more: just what is stored is counted.
func (m *model) quiet() {
	for range 2 {
		for leader := range m.leaders {
			for m.recount(leader); m.running > 0; m.settle() {
				m.step()
			}
		}
		m.pass(Lifetime)
	}
	for _, name := range []string{"team-a", "wide"} {
		var quota v1alpha1.ShareQuota
		if err := m.store.Get(m.t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, &quota); err != nil {
			m.t.Fatal(err)
		}
		if got := read(*quota.Status.Used); got != m.stored() || len(quota.Status.Reservations) > 0 {
			m.t.Errorf("ShareQuota %s: used are %+v with %d reservations, stored are %+v", name, got, len(quota.Status.Reservations), m.stored())
		}
	}
	if len(m.let) < 5 {
		m.t.Errorf("only %d claims were let in: this history shows little", len(m.let))
	}
}
