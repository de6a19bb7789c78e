//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// breakage is one kind of trouble on a node. It returns when what it broke serves again.
type breakage struct {
	kind   string
	often  int // how often it is drawn, beside the others
	strike func(ctx context.Context, s *spec, random *rand.Rand) error
}

var breakages = []breakage{
	{"plugin killed", 5, breakPlugin},
	{"plugin's pod deleted", 2, breakPluginsPod},
	{"kubelet killed", 4, breakKubelet},
	{"containerd killed", 3, breakContainerd},
	{"node rebooted", 2, breakNode},
	{"API server killed", 3, breakAPIServer},
	{"etcd killed", 1, breakEtcd},
	{"scheduler killed", 1, breakScheduler},
	{"controller manager killed", 1, breakControllerManager},
	{"our controller killed", 2, breakOurController},
	{"specs lost", 2, loseSpecs},
	{"record torn", 3, tearRecord},
	{"NVML failed", 2, breakNVML},
	{"GPU unwell", 2, makeGPUUnwell},
}

// breakThings breaks one thing after another until trouble ends.
func (c *chaos) breakThings(trouble, ctx context.Context, random *rand.Rand) error {
	var drawn []breakage
	for _, b := range breakages {
		for range b.often {
			drawn = append(drawn, b)
		}
	}
	for {
		b := drawn[random.IntN(len(drawn))]
		node := chaosNodes[random.IntN(len(chaosNodes))]
		select {
		case <-trouble.Done():
			return nil
		case <-time.After(time.Duration(random.IntN(8000)) * time.Millisecond): // some moment of the pods' lives
		}
		if err := b.strike(ctx, c.on[node], random); err != nil {
			return fmt.Errorf("%s on node %s: %w", b.kind, node, err)
		}
		c.mu.Lock()
		c.broken[b.kind]++
		c.mu.Unlock()
	}
}
