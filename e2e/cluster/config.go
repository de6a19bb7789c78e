package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// Config says what cluster to start. The zero value is a cluster of one node.
type Config struct {
	// Dir is where the cluster keeps its files: a directory that does not exist
	// or is empty. It is removed at the end. Empty: a temporary one.
	Dir string `json:"dir"`
	// Keep leaves Dir in place at the end.
	Keep bool `json:"keep,omitempty"`
	// Detach lets the cluster live on when the process that started it ends.
	// Without it, that process's death, by whatever cause, ends the cluster.
	Detach bool `json:"detach,omitempty"`
	// Log receives progress, for people.
	Log io.Writer `json:"-"`
	// Nodes; empty means one, named node-1.
	Nodes []Node `json:"nodes"`
}

// Node is one node of the cluster.
type Node struct {
	Name   string            `json:"name"` // a DNS label
	Labels map[string]string `json:"labels,omitempty"`
	// Hardware, if any, gives the node a simulated NVIDIA driver, whose root is
	// at /run/nvidia/driver, and all its containers the hardware behind it.
	Hardware *simdriver.Hardware `json:"-"`
	// Mounts bind files or directories of this machine into the node.
	Mounts []Mount `json:"mounts,omitempty"`
	// ContainerMounts bind files or directories of the node (Source is a path
	// as the node sees it) into every container on it, as if they belonged to
	// the kernel: pods neither ask for them nor see them in their spec.
	ContainerMounts []Mount `json:"containerMounts,omitempty"`
}

// Mount is one bind mount.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// The cluster's addresses. They exist in its network namespace only.
const (
	serviceRange    = "10.96.0.0/16"
	serviceAddress  = "10.96.0.1" // of the service `kubernetes`
	controlAddress  = "10.90.0.1"
	apiServerInside = "https://" + serviceAddress + ":443"
	maxNodes        = 200
)

func nodeAddress(index int) string { return fmt.Sprintf("10.90.0.%d", 10+index) }
func podRange(index int) string    { return fmt.Sprintf("10.244.%d.0/24", index) }

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// complete fills defaults and refuses what cannot work.
func (c *Config) complete() error {
	if c.Log == nil {
		c.Log = io.Discard
	}
	if len(c.Nodes) == 0 {
		c.Nodes = []Node{{Name: "node-1"}}
	}
	if len(c.Nodes) > maxNodes {
		return fmt.Errorf("%d nodes: at most %d have addresses", len(c.Nodes), maxNodes)
	}
	c.Nodes = slices.Clone(c.Nodes)
	seen := make(map[string]bool)
	for _, node := range c.Nodes {
		if err := node.check(); err != nil {
			return err
		}
		if seen[node.Name] {
			return fmt.Errorf("two nodes are named %s", node.Name)
		}
		seen[node.Name] = true
	}
	return nil
}

func (n Node) check() error {
	if !dnsLabel.MatchString(n.Name) {
		return fmt.Errorf("node name %q is not a DNS label", n.Name)
	}
	for _, mount := range n.Mounts {
		if !filepath.IsAbs(mount.Target) {
			return fmt.Errorf("node %s: mount target %q is not absolute", n.Name, mount.Target)
		}
		if _, err := os.Stat(mount.Source); err != nil {
			return fmt.Errorf("node %s: mount source: %w", n.Name, err)
		}
	}
	for _, mount := range n.ContainerMounts {
		if !filepath.IsAbs(mount.Source) || !filepath.IsAbs(mount.Target) {
			return fmt.Errorf("node %s: container mount %q at %q is not absolute", n.Name, mount.Source, mount.Target)
		}
	}
	return nil
}

// makeDir makes Dir, which the cluster removes at its end, so nobody else's
// files may be in it.
func (c *Config) makeDir() error {
	if c.Dir == "" {
		dir, err := os.MkdirTemp("", "aliquot-cluster-")
		c.Dir = dir
		return err
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	c.Dir = dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("cluster directory %s is not empty: stop the cluster that uses it, or name another", dir)
	}
	return err
}

// index returns a node's place in the list, which decides its addresses.
func (c *Config) index(name string) (int, error) {
	for i, node := range c.Nodes {
		if node.Name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the cluster has no node %s", name)
}
