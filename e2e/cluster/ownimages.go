package cluster

import (
	"context"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/wait"

	"aliquot.dev/aliquot/e2e/cluster/image"
)

// ownImages are those that every node has from the start.
func ownImages() map[string]image.Image {
	return map[string]image.Image{"pause": image.Pause(), "base": image.Base()}
}

func (p *plan) writeImages() error {
	if err := os.MkdirAll(p.path("images"), 0o755); err != nil {
		return err
	}
	for name, i := range ownImages() {
		if err := i.Write(p.path("images", name+".tar")); err != nil {
			return err
		}
	}
	return nil
}

// loadOwnImages gives a node its first images, as soon as containerd answers.
func (c *Cluster) loadOwnImages(ctx context.Context, node string) error {
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := c.Check(ctx); err != nil {
			return false, err
		}
		out, err := c.OnNode(ctx, node, "ctr", "--connect-timeout=1s", "version")
		return err == nil && strings.Contains(out, "Server:"), nil
	})
	if err != nil {
		return err
	}
	for name := range ownImages() {
		if err := c.LoadImage(ctx, node, c.plan.path("images", name+".tar")); err != nil {
			return err
		}
	}
	c.progress.done("images loaded on " + node)
	return nil
}
