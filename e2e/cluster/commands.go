package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/cluster/image"
)

// Command prepares one of the cluster's programs, such as kubectl or helm, to
// run on this machine against the cluster.
func (c *Cluster) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.plan.program(program), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	return cmd
}

// Kubectl runs kubectl and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return output(c.Command(ctx, "kubectl", args...))
}

// Apply applies manifests.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	cmd := c.Command(ctx, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	_, err := output(cmd)
	return err
}

// Helm runs helm and returns what it prints.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	return output(c.Command(ctx, "helm", args...))
}

// NodeCommand prepares a command that runs on a node, as if typed at its
// console: in its namespaces and with its file system, outside any container.
func (c *Cluster) NodeCommand(ctx context.Context, node string, argv ...string) (*exec.Cmd, error) {
	pid, err := c.nodePID(node)
	if err != nil {
		return nil, err
	}
	// The command takes the node's namespaces from its init. That it lies in
	// another cgroup does no harm: it is short.
	args := []string{"--target", strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	cmd.Env = []string{"PATH=" + nodePath, "HOME=/root"}
	return cmd, nil
}

// OnNode runs a command on a node and returns what it prints.
func (c *Cluster) OnNode(ctx context.Context, node string, argv ...string) (string, error) {
	cmd, err := c.NodeCommand(ctx, node, argv...)
	if err != nil {
		return "", err
	}
	return output(cmd)
}

// Listen takes connections at a TCP port of all nodes.
func (c *Cluster) Listen(port int) (net.Listener, error) {
	root, err := c.NodeRoot(c.Nodes()[0])
	if err != nil {
		return nil, err
	}
	namespace, err := os.Open(filepath.Join(filepath.Dir(root), "ns", "net"))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	var listener net.Listener
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread that enters the nodes' network ends with this
		err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		}
		done <- err
	}()
	err = <-done
	return listener, err
}

// NodeRoot is where this machine sees a node's file system while the node runs.
// A link in it that is absolute leads out of it.
func (c *Cluster) NodeRoot(node string) (string, error) {
	pid, err := c.nodePID(node)
	return fmt.Sprintf("/proc/%d/root", pid), err
}

// LoadImage gives a node an image from an archive that image.Write made.
func (c *Cluster) LoadImage(ctx context.Context, node, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd, err := c.NodeCommand(ctx, node, "ctr", "--namespace=k8s.io", "images", "import", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = file
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("load image %s on node %s: %w", archive, node, err)
	}
	return nil
}

// AddImage makes an image and gives it to every node.
func (c *Cluster) AddImage(ctx context.Context, i image.Image) error {
	archive, err := os.CreateTemp(c.plan.Dir, "image-*.tar")
	if err != nil {
		return err
	}
	archive.Close()
	defer os.Remove(archive.Name())
	if err := i.Write(archive.Name()); err != nil {
		return err
	}
	for _, node := range c.Nodes() {
		if err := c.LoadImage(ctx, node, archive.Name()); err != nil {
			return err
		}
	}
	return nil
}

// nodePID finds the pid, as this machine numbers it, of a node's init: it runs
// under a name of its own.
func (c *Cluster) nodePID(node string) (int, error) {
	want := strings.Join([]string{nodeInitName, c.plan.Dir, node, ""}, "\x00")
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, process := range processes {
		pid, err := strconv.Atoi(process.Name())
		if err != nil {
			continue
		}
		if name, err := os.ReadFile("/proc/" + process.Name() + "/cmdline"); err == nil && string(name) == want {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("node %s does not run", node)
}

// output runs a command; an error has what the command said.
func output(cmd *exec.Cmd) (string, error) {
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	line := strings.Join(cmd.Args[1:], " ")
	return out.String(), fmt.Errorf("%s %s: %w: %s", cmd.Args[0], line, err, bytes.TrimSpace(messages.Bytes()))
}
