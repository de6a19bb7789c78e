//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// breakage is one kind of trouble, on the spec's node if it is of a node. It returns when what it broke serves again.
type breakage struct {
	kind   string
	often  int // how often it is drawn, beside the others
	strike func(ctx context.Context, s *spec, random *rand.Rand) error
}

var ofNodes = []breakage{
	{"plugin killed", 5, breakPlugin},
	{"plugin's pod deleted", 2, breakPluginsPod},
	{"kubelet killed", 4, breakKubelet},
	{"containerd killed", 2, breakContainerd},
	{"node rebooted", 2, breakNode},
	{"specs lost", 2, loseSpecs},
	{"record torn", 3, tearRecord},
	{"NVML failed", 2, breakNVML},
	{"GPU unwell", 2, makeGPUUnwell},
}

var ofControlPlane = []breakage{
	{"API server killed", 3, breakAPIServer},
	{"etcd killed", 1, breakEtcd},
	{"scheduler killed", 1, breakScheduler},
	{"controller manager killed", 1, breakControllerManager},
	{"our controller killed", 2, breakOurController},
}

// breakThings breaks one thing after another until trouble ends: on each node, and in the control plane beside that, which takes longer to come back.
func (c *chaos) breakThings(trouble, ctx context.Context, seed uint64) {
	var breakers sync.WaitGroup
	breakers.Go(func() {
		c.breakOne(trouble, ctx, c.spec, rand.New(rand.NewPCG(seed, 1000)), ofControlPlane, 3**chaosPause)
	})
	for i, node := range chaosNodes {
		random := rand.New(rand.NewPCG(seed, uint64(1001+i)))
		breakers.Go(func() { c.breakOne(trouble, ctx, c.on[node], random, ofNodes, *chaosPause) })
	}
	breakers.Wait()
}

// breakOne leaves things alone for at most a while in between.
func (c *chaos) breakOne(trouble, ctx context.Context, s *spec, random *rand.Rand, breakages []breakage, while time.Duration) {
	var drawn []breakage
	for _, b := range breakages {
		for range b.often {
			drawn = append(drawn, b)
		}
	}
	for {
		b := drawn[random.IntN(len(drawn))]
		select {
		case <-trouble.Done():
			return
		case <-time.After(time.Duration(random.Int64N(int64(while)))): // some moment of the pods' lives
		}
		if err := b.strike(ctx, s, random); err != nil {
			c.fail(fmt.Errorf("%s, node %s: %w", b.kind, s.node, err))
			return
		}
		c.mu.Lock()
		c.broken[b.kind]++
		c.mu.Unlock()
	}
}
