package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"aliquot.dev/aliquot/e2e/cluster/internal/supervise"
	"aliquot.dev/aliquot/e2e/cluster/programs"
)

// Cluster is a cluster that runs.
type Cluster struct {
	// Kubeconfig is the path of an administrator's kubeconfig that works from
	// this machine.
	Kubeconfig string

	plan     *plan
	entry    *entry
	progress *progress
	keeper   *exec.Cmd // of a cluster that this process started
	lifeline *os.File  // whose closing ends the cluster
	stop     sync.Once
	stopErr  error
}

// Start starts a cluster and returns when all its nodes are ready for pods.
// When it fails, or ctx ends before, nothing is left.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if !reexecReady {
		return nil, errors.New("start a cluster: call cluster.Reexec first in main or TestMain")
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("start a cluster: needs root, for namespaces, mounts and cgroups")
	}
	if err := Clean(); err != nil {
		return nil, fmt.Errorf("sweep the leftovers of dead clusters: %w", err)
	}
	if err := config.complete(); err != nil {
		return nil, err
	}
	bin, err := programs.Build(ctx, config.Log)
	if err != nil {
		return nil, err
	}
	if err := config.makeDir(); err != nil {
		return nil, err
	}
	c, err := launch(ctx, config, bin)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(config.Dir))
	}
	if err := c.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// launch writes the cluster's files and starts its processes.
func launch(ctx context.Context, config Config, bin string) (*Cluster, error) {
	c := &Cluster{progress: newProgress(config.Log)}
	// Clients outside reach the API server at this socket. It exists before the
	// cluster, so that its port can stand in the kubeconfig.
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	c.plan, err = newPlan(config, bin, listener.Addr().String())
	if err != nil {
		return nil, err
	}
	c.Kubeconfig = c.plan.path(kubeconfigFile)
	if err := c.plan.makeHardware(ctx); err != nil {
		return nil, err
	}
	if err := c.plan.writeAll(); err != nil {
		return nil, err
	}
	c.progress.done("hardware, certificates, configuration and images made")
	socket, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	return c, c.startKeeper(socket)
}

func (c *Cluster) startKeeper(socket *os.File) error {
	e, registry, err := register(c.plan)
	if err != nil {
		return err
	}
	defer registry.Close()
	c.entry = e
	var far *os.File
	if !c.plan.Detach {
		if far, c.lifeline, err = os.Pipe(); err != nil {
			return err
		}
		defer far.Close()
	}
	if c.keeper, err = startKeeper(c.plan, socket, registry, far); err != nil {
		return errors.Join(err, e.remove())
	}
	e.PID = c.keeper.Process.Pid
	return e.write()
}

// writeAll writes all files that the cluster's processes read.
func (p *plan) writeAll() error {
	if err := p.write(); err != nil {
		return err
	}
	if err := p.writeCredentials(); err != nil {
		return err
	}
	if err := p.writeAuditPolicy(); err != nil {
		return err
	}
	for i := range p.Nodes {
		if err := p.writeNode(i); err != nil {
			return err
		}
	}
	return p.writeImages()
}

// Attach returns the cluster that runs in a directory, started by this process
// or, detached, by another.
func Attach(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	all, err := entries()
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.Dir != dir || !e.alive() {
			continue
		}
		p, err := readPlan(dir)
		if err != nil {
			return nil, err
		}
		return &Cluster{Kubeconfig: p.path(kubeconfigFile), plan: p, entry: e, progress: newProgress(nil)}, nil
	}
	return nil, fmt.Errorf("no cluster runs in %s", dir)
}

// Stop ends the cluster at once and returns when nothing of it is left: no
// process, mount, cgroup, namespace or, unless Keep was asked, directory. It
// may be called again.
func (c *Cluster) Stop() error {
	c.stop.Do(func() {
		start := time.Now()
		c.stopErr = c.end()
		c.progress.took("cluster stopped", start)
	})
	return c.stopErr
}

func (c *Cluster) end() error {
	if c.lifeline != nil {
		c.lifeline.Close()
	}
	if c.keeper != nil {
		_ = c.keeper.Process.Signal(unix.SIGTERM)
		_ = c.keeper.Wait()
	} else if c.entry.alive() && c.entry.PID > 0 {
		// Alive, so the pid is the keeper's.
		if err := unix.Kill(c.entry.PID, unix.SIGTERM); err != nil && err != unix.ESRCH {
			return fmt.Errorf("end the cluster's keeper: %w", err)
		}
	}
	if err := c.entry.await(); err != nil {
		return err
	}
	// The keeper removed everything, unless it was killed.
	return Clean()
}

// Dir is the cluster's directory; its logs lie under logs.
func (c *Cluster) Dir() string { return c.plan.Dir }

// Programs is the directory of the cluster's programs, kubectl and helm among
// them.
func (c *Cluster) Programs() string { return c.plan.Programs }

// Nodes names the cluster's nodes.
func (c *Cluster) Nodes() []string {
	names := make([]string, len(c.plan.Nodes))
	for i, node := range c.plan.Nodes {
		names[i] = node.Name
	}
	return names
}

// RESTConfig is a client configuration with an administrator's rights.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	return clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
}

// StopKubelet ends a node's kubelet; its pods run on.
func (c *Cluster) StopKubelet(ctx context.Context, node string) error {
	return c.nodeControl(node).Stop(ctx, "kubelet")
}

// StartKubelet starts a node's kubelet again.
func (c *Cluster) StartKubelet(ctx context.Context, node string) error {
	return c.nodeControl(node).Start(ctx, "kubelet")
}

// StopNode cuts a node's power: every process of it is gone, what it has on
// disk stays.
func (c *Cluster) StopNode(ctx context.Context, node string) error {
	return c.control().Stop(ctx, node)
}

// StartNode boots a node that StopNode stopped. With a fresh boot id and an
// empty /run, kubelet starts its pods anew; GPUs are not divided any more.
func (c *Cluster) StartNode(ctx context.Context, node string) error {
	index, err := c.plan.index(node)
	if err != nil {
		return err
	}
	if c.plan.Nodes[index].Hardware != nil {
		driver, err := c.Driver(node)
		if err != nil {
			return err
		}
		if err := driver.Boot(); err != nil {
			return err
		}
	}
	return c.control().Start(ctx, node)
}

// KillOnNode kills a program of a node, kubelet or containerd, and starts it
// again. It does not wait until that serves.
func (c *Cluster) KillOnNode(ctx context.Context, node, program string) error {
	return killAndStart(ctx, c.nodeControl(node), program)
}

// KillControlPlane kills a program of the control plane, such as
// kube-apiserver, and starts it again. It does not wait until that serves. The
// scheduler and the controller manager end at their start where there is no API
// server.
func (c *Cluster) KillControlPlane(ctx context.Context, program string) error {
	return killAndStart(ctx, c.control(), program)
}

func killAndStart(ctx context.Context, control supervise.Client, program string) error {
	if err := control.Kill(ctx, program); err != nil {
		return err
	}
	return control.Start(context.WithoutCancel(ctx), program)
}

func (c *Cluster) control() supervise.Client {
	return supervise.Client{Socket: c.plan.path(controlSocket)}
}

func (c *Cluster) nodeControl(node string) supervise.Client {
	return supervise.Client{Socket: c.plan.node(node, controlSocket)}
}
