//go:build e2e

package specs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
)

var (
	chaosDuration = flag.Duration("chaos.duration", 3*time.Minute, "how long TestNoPodIsLostInChaos makes trouble")
	chaosPods     = flag.Int64("chaos.pods", 0, "how many pods TestNoPodIsLostInChaos makes at least, if it takes up to three times as long")
	chaosSeed     = flag.Uint64("chaos.seed", 0, "seed of TestNoPodIsLostInChaos; 0 takes a new one")
	chaosPause    = flag.Duration("chaos.pause", 20*time.Second, "for how long at most TestNoPodIsLostInChaos leaves a node alone once it serves again")
	chaosWriters  = flag.Int("chaos.writers", 20, "how many start and remove pods at once in TestNoPodIsLostInChaos")
)

// chaosNodes are where it happens: GPUs that can be partitioned, and small ones.
var chaosNodes = []string{hopper, crashing}

// chaos is a load of pods, somebody who breaks things, and somebody who looks at the hardware all the time.
type chaos struct {
	*spec
	on   map[string]*spec // the spec as one of each node
	pods *podStore
	fail context.CancelCauseFunc
	calm chan struct{} // closed when nothing is broken any more

	made, done atomic.Int64 // pods
	seen       atomic.Pointer[map[string]simdriver.Ledger]
	mu         sync.Mutex
	broken     map[string]int    // what was broken how often, by kind
	budgets    map[string]budget // by pod
}

// TestNoPodIsLostInChaos: pods with shares, partitions and whole GPUs come and go while plugin, kubelet, containerd, the
// control plane and the nodes die at random. Each pod gets what it was granted and no more, and nothing is left.
func TestNoPodIsLostInChaos(t *testing.T) {
	s := alone(t, chaosNodes[0])
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-chaos.seed %d -chaos.duration %s -chaos.pods %d -chaos.pause %s -chaos.writers %d", seed, *chaosDuration, *chaosPods, *chaosPause, *chaosWriters)
	ctx, fail := context.WithCancelCause(t.Context())
	c := newChaos(s, fail)
	var load, lookers sync.WaitGroup
	looking, looked := context.WithCancel(ctx)
	defer lookers.Wait()
	defer looked()
	s.must(c.pods.watch(looking, &lookers))
	s.must(c.look(looking, &lookers))
	lookers.Go(func() { c.report(looking) })

	trouble, over := context.WithTimeout(ctx, longestChaos())
	defer over()
	lookers.Go(func() { c.endTrouble(trouble, over) })
	c.startLoad(trouble, ctx, seed, &load)
	c.breakThings(trouble, ctx, seed)
	close(c.calm)
	load.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log(c.state())
	if made := c.made.Load(); made < *chaosPods {
		t.Errorf("%d pods in %s, want %d", made, longestChaos(), *chaosPods)
	}
	c.nothingLeft()
}

// longestChaos is when trouble ends even if too few pods were made.
func longestChaos() time.Duration {
	if *chaosPods > 0 {
		return 3 * *chaosDuration
	}
	return *chaosDuration
}

// endTrouble waits for the least that is to happen.
func (c *chaos) endTrouble(ctx context.Context, over func()) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(*chaosDuration):
	}
	for ; ctx.Err() == nil && c.made.Load() < *chaosPods; <-time.After(time.Second) {
	}
	over()
}

func newChaos(s *spec, fail context.CancelCauseFunc) *chaos {
	c := &chaos{
		spec: s, fail: fail, on: map[string]*spec{}, calm: make(chan struct{}),
		broken: map[string]int{}, budgets: map[string]budget{},
	}
	c.pods = newPodStore(s, func(err error) { fail(err) })
	for _, node := range chaosNodes {
		c.on[node] = &spec{T: s.T, World: s.World, node: node, namespace: s.namespace}
	}
	return c
}

// report tells how it goes.
func (c *chaos) report(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Second):
			c.Log(c.state())
		}
	}
}

func (c *chaos) state() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds := make([]string, 0, len(c.broken))
	for _, kind := range slices.Sorted(maps.Keys(c.broken)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, c.broken[kind]))
	}
	return fmt.Sprintf("pods made %d, done %d; broken: %s", c.made.Load(), c.done.Load(), strings.Join(kinds, ", "))
}

// nothingLeft checks the nodes once all pods are gone.
func (c *chaos) nothingLeft() {
	c.Helper()
	c.eventually("nothing is left of the pods", func(ctx context.Context) (bool, error) {
		claims, err := c.Client.ResourceV1().ResourceClaims(c.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		left, err := c.Leftovers(ctx)
		for _, claim := range claims.Items {
			left = append(left, "claim "+claim.Name)
		}
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left: %q", left))
		}
		return err == nil, err
	})
	for _, s := range c.on {
		c.must(s.settled(c.Context()))
		for i := range s.cards() {
			s.divided(i, "false")
		}
	}
}

// until waits as long as something may take amid all the trouble, which may meet it again and again: until that is over,
// and what it takes then.
func until(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	return scenario.Within(ctx, longestChaos()+2*scenario.Patience, what, condition)
}
