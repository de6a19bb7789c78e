package preload_test

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hosted is what is seen of a program from outside.
type hosted struct {
	Stdout, Stderr, Ended string
}

// host runs testdata/host.c, with the library or without.
func (m *machine) host(t *testing.T, preload bool, args ...string) hosted {
	t.Helper()
	cmd := exec.Command(compile(t, "host"), args...)
	cmd.Dir = m.dir
	cmd.Env = m.environ(preload)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // most do not end well
	return hosted{stdout.String(), stderr.String(), cmd.ProcessState.String()}
}

func (m *machine) checkHost(t *testing.T, args ...string) {
	t.Helper()
	without, with := m.host(t, false, args...), m.host(t, true, args...)
	if diff := cmp.Diff(without, with); diff != "" {
		t.Errorf("the library changed its host (-without +with):\n%s", diff)
	}
	if with.Stderr != "" {
		t.Errorf("stderr is %q", with.Stderr)
	}
}

// Signals, masks, umask, descriptors, threads, limits, errno, dlerror and what
// calls answer: all is as it would be, after every call and however the program
// ends, and nothing is said.
func TestTheLibraryDoesNotChangeItsHost(t *testing.T) {
	for _, ending := range []string{"return", "exit", "_exit", "quick_exit", "abort", "signal", "fault", "pthread_exit", "thread"} {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 1)
			m.newShare(t, 0, "one", 64<<30) // more than the card has
			m.checkHost(t, ending, "results")
		})
	}
}

func TestRefusalsDoNotChangeTheHost(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 4*mib)
	// Looking for the memory of the dead fails on the living.
	m.client(t, 0).want(t, success, "alloc 0 %d", 2*mib)
	m.checkHost(t, "return", "state")
}
