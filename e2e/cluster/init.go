package cluster

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"aliquot.dev/aliquot/e2e/cluster/internal/supervise"
)

// runInit is pid 1 of the cluster. It never returns but for an error; whoever
// wants the cluster to end kills it.
func runInit(dir string) error {
	p, err := readPlan(dir)
	if err != nil {
		return err
	}
	if err := enterGroup(p.controlGroup()); err != nil {
		return err
	}
	// What is mounted from here on stays here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if err := p.setUpNetwork(); err != nil {
		return err
	}
	if err := forwardClients(); err != nil {
		return err
	}
	return p.runControlPlane()
}

// setUpNetwork gives lo the addresses of the API server and of the nodes. It
// runs before anything else may fork, see supervise.Set.
func (p *plan) setUpNetwork() error {
	if err := unix.Sethostname([]byte("control-plane")); err != nil {
		return err
	}
	commands := [][]string{{"link", "set", "lo", "up"}}
	for _, address := range []string{serviceAddress, controlAddress} {
		commands = append(commands, []string{"address", "add", address + "/32", "dev", "lo"})
	}
	for i := range p.Nodes {
		commands = append(commands, []string{"address", "add", nodeAddress(i) + "/32", "dev", "lo"})
	}
	for _, command := range commands {
		if out, err := exec.Command("ip", command...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(command, " "), err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// forwardClients joins each connection to the inherited socket, which lives in
// the network namespace outside, with the API server inside.
func forwardClients() error {
	file := os.NewFile(listenerFile, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	file.Close() // the listener is a copy, which no child inherits
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go forward(client)
		}
	}()
	return nil
}

func forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", serviceAddress+":443")
	if err != nil {
		return // not yet up; the client sees its connection close
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		pipe(server, client)
		close(done)
	}()
	pipe(client, server)
	<-done
}

// pipe copies one direction and passes its end on.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}

// runControlPlane starts everything and then serves requests about it. The
// nodes start at once: they wait for the API server by themselves.
func (p *plan) runControlPlane() error {
	control, err := supervise.Listen(p.path(controlSocket))
	if err != nil {
		return err
	}
	set := supervise.NewSet()
	for _, process := range []supervise.Process{p.etcd(), p.apiServer()} {
		if err := set.Add(process); err != nil {
			return err
		}
	}
	for _, node := range p.Nodes {
		if err := set.Add(p.nodeProcess(node.Name)); err != nil {
			return err
		}
	}
	go func() {
		// These end when there is no API server at their start.
		if err := p.awaitAPIServer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		for _, process := range []supervise.Process{p.controllerManager(), p.scheduler()} {
			if err := set.Add(process); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	return set.Serve(control)
}

// nodeProcess is a node: its own pid, mount, ipc and uts namespaces here, its
// cgroup namespace a step later.
func (p *plan) nodeProcess(name string) supervise.Process {
	return supervise.Process{
		Name: name,
		Path: self,
		Args: []string{nodeName, p.Dir, name},
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Log:  p.log(name),
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		},
	}
}

// awaitAPIServer asks until the API server can serve the components.
func (p *plan) awaitAPIServer() error {
	config, err := clientcmd.BuildConfigFromFlags("", p.path("kube-scheduler.conf"))
	if err != nil {
		return err
	}
	config.Timeout = 5 * time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	for ; ; time.Sleep(50 * time.Millisecond) {
		response, err := client.Get(apiServerInside + "/readyz")
		if err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return nil
		}
	}
}
