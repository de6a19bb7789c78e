package preload_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// trick is a running testdata/process.c, which has taken all it could get.
type trick struct {
	cmd                     *exec.Cmd
	stderr                  bytes.Buffer
	pid, pieces             int
	descriptors, lastOfOurs int
}

// play starts a trick and waits for its report. A program that ends before it
// reports has none: pid is 0.
func (m *machine) play(t *testing.T, name string) *trick {
	t.Helper()
	p, report := &trick{}, filepath.Join(t.TempDir(), "report")
	p.cmd = m.command(t, compile(t, "process"), name, report)
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { p.cmd.Wait(); close(ended) }()
	t.Cleanup(func() { p.cmd.Process.Kill(); <-ended })
	for {
		text, err := os.ReadFile(report)
		if err == nil {
			if _, err := fmt.Sscan(string(text), &p.pid, &p.pieces, &p.descriptors, &p.lastOfOurs); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			t.Cleanup(p.kill)
			return p
		}
		select {
		case <-ended:
			// A daemon's first process ends long before the report.
			if p.cmd.ProcessState.ExitCode() != 0 {
				return p
			}
		default:
		}
		<-time.After(time.Millisecond) // and look again
	}
}

// kill ends the trick, once, and waits until the kernel has dropped its locks.
func (p *trick) kill() {
	pid := p.pid
	p.pid = 0
	for pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		<-time.After(time.Millisecond) // and look again
	}
}

// Whatever a program does to its processes and descriptors, it gets its quota
// and no more, the others get none of it while it lives and all of it
// afterwards, and its descriptors are its own.
func TestTheLimitHoldsWhateverAProgramDoesToItself(t *testing.T) {
	const limit = 16 * mib
	tests := []struct {
		trick       string
		least, most int // the number of our descriptor
		descriptors int
	}{
		{"plain", 900, 900, 1},
		{"vfork", 900, 900, 1},
		{"exec", 900, 901, 2}, // one was left open to it
		{"daemon", 900, 900, 1},
		{"daemon-late", 900, 900, 1},
		{"close-most", 900, 900, 1},
		{"dup2", 901, 901, 1},
		{"lower-first", 32, 63, 1},
		{"lower-later", 900, 900, 1},
		{"raise-later", 100, 127, 1},
	}
	for _, test := range tests {
		t.Run(test.trick, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 1)
			s := m.newShare(t, 0, "one", limit)
			p := m.play(t, test.trick)
			if p.pid == 0 {
				t.Fatalf("the program ended: %v\n%s", p.cmd.ProcessState, p.stderr.String())
			}
			if p.pieces != 6 {
				t.Errorf("it got %d pieces of 2 MiB beside its 4 MiB, want 6", p.pieces)
			}
			if p.lastOfOurs < test.least || p.lastOfOurs > test.most || p.descriptors != test.descriptors {
				t.Errorf("%d descriptors are ours, the last is %d; want %d, between %d and %d",
					p.descriptors, p.lastOfOurs, test.descriptors, test.least, test.most)
			}
			m.checkLedger(t, 0, limit)
			other := m.client(t, 0)
			other.want(t, outOfMemory, "alloc 0 1")
			s.checkCharged(t, limit)
			p.kill()
			other.want(t, success, "alloc 0 %d", limit)
			other.want(t, outOfMemory, "alloc 1 1")
			m.checkLedger(t, 0, limit)
			if p.stderr.Len() > 0 {
				t.Errorf("stderr is %q", p.stderr.String())
			}
		})
	}
}

// Without its descriptors the driver does nothing more either, and the hardware
// has taken back what the process had.
func TestAProcessThatClosesEverythingHoldsNothing(t *testing.T) {
	const limit = 16 * mib
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", limit)
	p := m.play(t, "close-all")
	if p.pid == 0 || p.pieces != 0 {
		t.Fatalf("the program ended, or got %d pieces: %v\n%s", p.pieces, p.cmd.ProcessState, p.stderr.String())
	}
	m.checkLedger(t, 0, 0)
	m.client(t, 0).want(t, success, "alloc 0 %d", limit)
	if peak := m.ledger(t, 0).Peak; peak > limit {
		t.Errorf("the hardware once gave out %d MiB", peak>>20)
	}
}

func TestWithoutADescriptorToBeHadTheShareIsClosed(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 16*mib)
	p := m.play(t, "exhaust")
	if p.pid != 0 || p.cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("the program got %d pieces: %v", p.pieces, p.cmd.ProcessState)
	}
	if said := p.stderr.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "cannot be opened") {
		t.Errorf("stderr is %q, want one line", said)
	}
	m.checkLedger(t, 0, 0)
}

// waitUntilStopped returns once the program has stopped itself.
func (c *client) waitUntilStopped(t *testing.T) {
	t.Helper()
	for {
		stat := readFile(t, fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		if strings.Contains(stat, ") T ") {
			return
		}
		if strings.Contains(stat, ") Z ") {
			t.Fatalf("the program ended\n%s", c.stderr.String())
		}
		<-time.After(time.Millisecond) // and look again
	}
}

// A process that is stopped in the middle of a call holds up only those who need
// what it has asked for, and these for a moment only.
func TestAProcessStoppedInACallKeepsItsChargeAndNothingElse(t *testing.T) {
	for _, test := range []struct {
		call          string
		before, after uint64 // what it holds
	}{{"alloc", 4 * mib, 12 * mib}, {"free", 12 * mib, 4 * mib}} {
		for _, end := range []string{"continued", "killed"} {
			t.Run(test.call+" and "+end, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, 1)
				s := m.newShare(t, 0, "one", 16*mib)
				other := m.client(t, 0)
				stopped := m.startClient(t, compile(t, "halt", "-rdynamic"), test.call)
				stopped.waitUntilStopped(t)
				m.checkLedger(t, 0, test.before)
				used, pending := s.charged(t)
				if used != 12*mib || pending != max(test.after, test.before)-test.before {
					t.Errorf("%d MiB are charged, %d of them pending", used>>20, pending>>20)
				}
				other.want(t, outOfMemory, "alloc 0 %d", 6*mib)
				other.want(t, success, "alloc 0 %d", 4*mib)
				other.want(t, outOfMemory, "alloc 1 1")
				after := test.after
				if end == "killed" {
					stopped.cmd.Process.Kill()
					stopped.cmd.Wait()
					after = 0
				} else {
					stopped.cmd.Process.Signal(syscall.SIGCONT)
					stopped.want(t, success, "")
				}
				m.checkLedger(t, 0, after+4*mib)
				if rest := 12*mib - after; rest > 0 {
					other.want(t, success, "alloc 1 %d", rest)
				}
				other.want(t, outOfMemory, "alloc 2 1")
				s.checkCharged(t, 16*mib)
				if usage := m.ledger(t, 0); usage.Used != 16*mib || usage.Peak > 16*mib {
					t.Errorf("the hardware has given out %d MiB, once %d", usage.Used>>20, usage.Peak>>20)
				}
			})
		}
	}
}
