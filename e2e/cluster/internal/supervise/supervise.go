// Package supervise runs named processes under an init: it starts, stops and
// reaps them, and answers for them on a socket. It restarts nothing: in a test
// a component that dies is a finding.
package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process says how to run one process.
type Process struct {
	Name string
	Path string   // of the program
	Args []string // with the program's name first
	Env  []string
	Log  string // file that its output is appended to
	// Grace is how long a stopped process may take after SIGTERM until it is
	// killed; zero kills at once.
	Grace time.Duration
	Sys   *syscall.SysProcAttr
}

// Status is what the supervisor knows of a process.
type Status struct {
	Name    string `json:"name"`
	PID     int    `json:"pid,omitempty"` // in the supervisor's pid namespace; 0: not running
	Outcome string `json:"outcome,omitempty"`
	Stopped bool   `json:"stopped,omitempty"` // not running because it was told so
}

// Set is the processes of one supervisor. It reaps every child of the calling
// process, known or not, since an init inherits orphans; so nothing else in
// that process may wait for a child.
type Set struct {
	mu     sync.Mutex
	order  []string
	byName map[string]*child
}

type child struct {
	process Process
	status  Status
	exited  chan struct{} // closed when the current run has ended
}

// NewSet returns a set that reaps from now on.
func NewSet() *Set {
	s := &Set{byName: make(map[string]*child)}
	deaths := make(chan os.Signal, 1)
	signal.Notify(deaths, unix.SIGCHLD)
	go func() {
		for range deaths {
			s.reap()
		}
	}()
	return s
}

// Add makes a process known and starts it.
func (s *Set) Add(p Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[p.Name] != nil {
		return fmt.Errorf("process %s exists", p.Name)
	}
	s.order = append(s.order, p.Name)
	s.byName[p.Name] = &child{process: p, status: Status{Name: p.Name}}
	return s.byName[p.Name].start()
}

// Start starts a known process; one that runs is left alone.
func (s *Set) Start(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byName[name]
	if c == nil {
		return fmt.Errorf("no process %s", name)
	}
	if c.status.PID != 0 {
		return nil
	}
	return c.start()
}

// Stop ends a process and returns when it is gone. A process that does not run
// is left alone.
func (s *Set) Stop(name string) error {
	return s.end(name, true)
}

// Kill ends a process as Stop does, and without asking it first.
func (s *Set) Kill(name string) error {
	return s.end(name, false)
}

func (s *Set) end(name string, ask bool) error {
	s.mu.Lock()
	c := s.byName[name]
	if c == nil {
		s.mu.Unlock()
		return fmt.Errorf("no process %s", name)
	}
	pid, exited, grace := c.status.PID, c.exited, c.process.Grace
	c.status.Stopped = true
	s.mu.Unlock()
	if pid == 0 {
		return nil
	}
	if ask && grace > 0 {
		_ = unix.Kill(pid, unix.SIGTERM)
		select {
		case <-exited:
			return nil
		case <-time.After(grace):
		}
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	<-exited
	return nil
}

// Status tells of every process, in the order they were added.
func (s *Set) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	statuses := make([]Status, 0, len(s.order))
	for _, name := range s.order {
		statuses = append(statuses, s.byName[name].status)
	}
	return statuses
}

// start is called with the set locked, so that reap cannot meet a pid that is
// not yet noted. It uses fork and exec directly: os.StartProcess may make
// children of its own, which reap would take away from it.
func (c *child) start() error {
	p := c.process
	if err := os.MkdirAll(filepath.Dir(p.Log), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(p.Path, p.Args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   p.Env,
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   p.Sys,
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	c.status = Status{Name: p.Name, PID: pid}
	c.exited = make(chan struct{})
	return nil
}

func (s *Set) reap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for _, c := range s.byName {
			if c.status.PID == pid {
				c.status.PID = 0
				c.status.Outcome = outcome(status)
				close(c.exited)
			}
		}
	}
}

func outcome(status unix.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
