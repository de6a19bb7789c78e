package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"aliquot.dev/aliquot/e2e/cluster/internal/cgroup"
)

// plan is what the processes of a cluster know of it. The starter computes it
// and writes it to the cluster's directory; the others read it.
type plan struct {
	ID       string `json:"id"`
	Programs string `json:"programs"` // directory of the binaries
	Address  string `json:"address"`  // of the API server, from outside
	Config
}

func newPlan(config Config, programs, address string) (*plan, error) {
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	return &plan{ID: hex.EncodeToString(id), Programs: programs, Address: address, Config: config}, nil
}

func readPlan(dir string) (*plan, error) {
	content, err := os.ReadFile(filepath.Join(dir, planFile))
	if err != nil {
		return nil, err
	}
	p := new(plan)
	if err := json.Unmarshal(content, p); err != nil {
		return nil, fmt.Errorf("read cluster plan in %s: %w", dir, err)
	}
	return p, nil
}

func (p *plan) write() error {
	content, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(p.path(planFile), content, 0o644)
}

// Places in the cluster's directory.
const (
	planFile       = "cluster.json"
	controlSocket  = "control.sock"
	kubeconfigFile = "kubeconfig"
)

func (p *plan) path(elements ...string) string {
	return filepath.Join(append([]string{p.Dir}, elements...)...)
}

func (p *plan) pki(name string) string           { return p.path("pki", name) }
func (p *plan) log(name string) string           { return p.path("logs", name+".log") }
func (p *plan) program(name string) string       { return filepath.Join(p.Programs, name) }
func (p *plan) node(name, element string) string { return p.path("nodes", name, element) }

func groupOf(id string) string { return "/aliquot-" + id }

// Groups below the cluster's: the control plane's and each node's. All of the
// cluster's processes are in one of them, so a group that can be removed is the
// proof that they are dead.
func (p *plan) controlGroup() string         { return groupOf(p.ID) + "/control-plane" }
func (p *plan) nodeGroup(node string) string { return groupOf(p.ID) + "/node-" + node }

// enterGroup moves the calling process into a group that is made anew. What a
// node left there when it was cut off is removed, as by a reboot: kubelet would
// look for those containers for half a minute.
func enterGroup(group string) error {
	hierarchies, err := cgroup.Mounted()
	if err != nil {
		return err
	}
	if err := hierarchies.Remove(group); err != nil {
		return err
	}
	if err := hierarchies.Create(group); err != nil {
		return err
	}
	return hierarchies.Join(group)
}
