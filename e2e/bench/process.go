package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Process is a program that is measured.
type Process struct {
	Ended chan struct{} // closed when it has ended

	cmd *exec.Cmd
	log *os.File
}

// Launch starts a program whose output goes to a file in a directory.
func Launch(cmd *exec.Cmd, dir string) (*Process, error) {
	log, err := os.CreateTemp(dir, "log-*")
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	p := &Process{Ended: make(chan struct{}), cmd: cmd, log: log}
	go func() {
		_ = cmd.Wait() // whoever waits for an answer tells of it
		close(p.Ended)
	}()
	return p, nil
}

// Stop kills it.
func (p *Process) Stop() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.Ended
	_ = p.log.Close()
}

// Why says what a program that ended has said.
func (p *Process) Why() error {
	said, _ := os.ReadFile(p.log.Name())
	return fmt.Errorf("%v ended: %s", p.cmd.Args, said)
}

func (p *Process) file(name string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), name)
}

// Status reads an amount of memory of /proc/<pid>/status, in MiB.
func (p *Process) Status(key string) float64 {
	data, err := os.ReadFile(p.file("status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			if err == nil {
				return kib / 1024
			}
		}
	}
	return 0
}

// Resident is what it has in memory now, in MiB.
func (p *Process) Resident() float64 { return p.Status("VmRSS") }

// Peak is the most that it had in memory, in MiB.
func (p *Process) Peak() float64 { return p.Status("VmHWM") }

// Waited is how long a process's threads could have run while its CPU was another's or one another's: the second number
// of schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst of Linux).
func (p *Process) Waited() time.Duration {
	threads, _ := filepath.Glob(p.file("task/*/schedstat"))
	var sum time.Duration
	for _, file := range threads {
		data, err := os.ReadFile(file)
		if fields := strings.Fields(string(data)); err == nil && len(fields) > 1 {
			waited, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += time.Duration(waited)
		}
	}
	return sum
}

// Worked is how long a process was on a CPU, as proc(5) says: utime and stime, in hundredths of a second.
func (p *Process) Worked() (time.Duration, error) {
	data, err := os.ReadFile(p.file("stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s has %d fields", p.file("stat"), len(fields))
	}
	user, userErr := strconv.Atoi(fields[11])
	system, systemErr := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(userErr, systemErr)
}

// FreePort finds a port at which nobody listens.
func FreePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, err
}
