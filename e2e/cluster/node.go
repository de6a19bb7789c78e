package cluster

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

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
	if err := set.Add(kubeletProcess(p.Nodes[index], index)); err != nil {
		return err
	}
	return set.Serve(control)
}

// runKubelet becomes the kubelet once containerd answers it, before which a
// kubelet ends at its start.
func runKubelet(args []string) error {
	conn, err := grpc.NewClient("unix:/run/containerd/containerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	answers := func() bool {
		// The request has no fields, and nothing of the answer is needed.
		return conn.Invoke(context.Background(), "/runtime.v1.RuntimeService/Version", &emptypb.Empty{}, &emptypb.Empty{}) == nil
	}
	for !answers() {
		time.Sleep(20 * time.Millisecond)
	}
	return unix.Exec(nodePrograms+"/kubelet", append([]string{"kubelet"}, args...), os.Environ())
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
	process.Path, process.Args[0] = self, kubeletName
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
