package cluster

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/cluster/internal/supervise"
)

// Places in a node.
const (
	nodePrograms = "/opt/cluster/bin"
	nodeLogs     = "/var/log/cluster"
	nodePath     = nodePrograms + ":/usr/sbin:/usr/bin:/sbin:/bin"
)

// enterNode is the first step of a node's init: it moves into the node's
// cgroup and makes that the root of its view. Unsharing concerns one thread
// only, so the process runs itself anew from that thread, which leaves it the
// only one.
func enterNode(dir, name string) error {
	p, err := readPlan(dir)
	if err != nil {
		return err
	}
	if err := enterGroup(p.nodeGroup(name)); err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	return unix.Exec(self, []string{nodeInitName, dir, name}, os.Environ())
}

// runNode is pid 1 of a node.
func runNode(dir, name string) error {
	p, err := readPlan(dir)
	if err != nil {
		return err
	}
	index, err := p.index(name)
	if err != nil {
		return err
	}
	// Made while the cluster's directory can still be seen.
	socket := p.node(name, controlSocket)
	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	control, err := supervise.Listen(socket)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	if err := p.enterRoot(p.Nodes[index]); err != nil {
		return err
	}
	set := supervise.NewSet()
	if err := set.Add(containerdProcess()); err != nil {
		return err
	}
	go func() {
		awaitContainerd()
		if err := set.Add(kubeletProcess(p.Nodes[index], index)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return set.Serve(control)
}

// awaitContainerd asks until containerd takes connections: a kubelet that
// finds none ends.
func awaitContainerd() {
	for ; ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", "/run/containerd/containerd.sock")
		if err == nil {
			conn.Close()
			return
		}
	}
}

func containerdProcess() supervise.Process {
	return nodeProgram("containerd", "--config=/etc/containerd/config.toml")
}

func kubeletProcess(node Node, index int) supervise.Process {
	labels := ""
	for key, value := range node.Labels {
		labels += "," + key + "=" + value
	}
	args := []string{
		"--config=/etc/kubernetes/kubelet.yaml",
		"--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--hostname-override=" + node.Name,
		"--node-ip=" + nodeAddress(index),
	}
	if labels != "" {
		args = append(args, "--node-labels="+labels[1:])
	}
	process := nodeProgram("kubelet", args...)
	process.Grace = 10 * time.Second
	return process
}

func nodeProgram(name string, args ...string) supervise.Process {
	return supervise.Process{
		Name: name,
		Path: nodePrograms + "/" + name,
		Args: append([]string{name}, args...),
		Env:  []string{"PATH=" + nodePath, "HOME=/root"},
		Log:  nodeLogs + "/" + name + ".log",
		Sys:  &syscall.SysProcAttr{Setsid: true},
	}
}
