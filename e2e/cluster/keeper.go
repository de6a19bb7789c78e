package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Files that the keeper inherits.
const (
	listenerFile = 3 + iota // the socket that clients outside connect to
	registryFile            // the locked registry entry
	lifelineFile            // ends when the starter does; absent from a detached cluster
)

// startKeeper starts the process that owns the cluster.
func startKeeper(p *plan, listener, registry, lifeline *os.File) (*exec.Cmd, error) {
	if err := os.MkdirAll(p.path("logs"), 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(p.log("keeper"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(self)
	cmd.Args = []string{keeperName, p.Dir}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{listener, registry}
	if lifeline != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, lifeline)
	}
	// A session of its own: an interrupt typed at a test's terminal is the
	// test's to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the cluster's keeper: %w", err)
	}
	return cmd, nil
}

// runKeeper is the keeper: it runs the cluster's init until that ends, is told
// to end it, or finds its starter gone; then it removes what is left.
func runKeeper(dir string) error {
	p, err := readPlan(dir)
	if err != nil {
		return err
	}
	// The cluster must not inherit the lock that tells of its keeper's life.
	for _, file := range []int{listenerFile, registryFile, lifelineFile} {
		unix.CloseOnExec(file)
	}
	registry, err := registryDir()
	if err != nil {
		return err
	}
	e := &entry{Dir: p.Dir, Keep: p.Keep, path: filepath.Join(registry, p.ID)}
	return errors.Join(keep(p), e.remove())
}

// keep returns when the init and so all the cluster's processes are gone.
func keep(p *plan) error {
	// The kernel ties the death signal below to the thread that forks.
	runtime.LockOSThread()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	listener := os.NewFile(listenerFile, "listener")
	cmd := exec.Command(self)
	cmd.Args = []string{initName, p.Dir}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{listener}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the cluster's init: %w", err)
	}
	listener.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return fmt.Errorf("the cluster's init ended by itself: %w", err)
	case <-stop:
	case <-lifelineEnd(p):
	}
	_ = cmd.Process.Kill()
	<-ended //nolint:errcheck // it was killed, so its end tells nothing
	return nil
}

// lifelineEnd returns a channel that closes when the starter has died.
func lifelineEnd(p *plan) <-chan struct{} {
	if p.Detach {
		return nil
	}
	end := make(chan struct{})
	go func() {
		_, _ = os.NewFile(lifelineFile, "lifeline").Read(make([]byte, 1))
		close(end)
	}()
	return end
}
