package preload_test

import (
	"strings"
	"testing"
)

// fd gives a command that answers with success and a file descriptor.
func (c *client) fd(t testing.TB, format string, args ...any) string {
	t.Helper()
	result, fd, _ := strings.Cut(c.do(t, format, args...), " ")
	if result != success {
		t.Fatalf("%s: answered %s", format, result)
	}
	return fd
}

func TestImportedAllocationsAreTheExporters(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	a, b := m.client(t, 0), m.client(t, 0)
	check := func(want uint64) {
		t.Helper()
		s.checkCharged(t, want)
		m.checkLedger(t, 0, want)
	}
	a.want(t, success, "create-shared 0 %d 0", 8*mib)
	fd := a.fd(t, "export 0")
	check(8 * mib)
	b.want(t, success, "create 1 %d 1 0", 16*mib) // b's first handle
	b.want(t, success, "import 2 %d %s", a.cmd.Process.Pid, fd)
	check(24 * mib)
	b.want(t, success, "reserve 3 %d", 64*mib)
	b.want(t, success, "map 3 2 0 %d", 8*mib)
	b.want(t, success, "map 3 1 %d %d", 8*mib, 16*mib)
	b.want(t, success, "release 2")
	b.want(t, success, "release 1")
	check(24 * mib)
	b.want(t, success, "retain 4 3 0") // theirs
	b.want(t, success, "retain 5 3 %d", 8*mib)
	b.want(t, success, "unmap 3 0 %d", 24*mib) // both
	check(24 * mib)
	b.want(t, success, "release 5")
	check(8 * mib)
	// The number that was b's own may be an import's now.
	b.want(t, success, "import 1 %d %s", a.cmd.Process.Pid, fd)
	b.want(t, success, "release 1")
	b.want(t, success, "release 4")
	b.want(t, invalidValue, "release 4")
	check(8 * mib)
	a.want(t, success, "release 0")
	check(0)
}

// The driver may give the exporter the handle that it has.
func TestAnImportOfOnesOwnMemoryHoldsItOnceMore(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	c := m.client(t, 0)
	c.want(t, success, "create-shared 0 %d 0", 8*mib)
	c.want(t, success, "import 1 %d %s", c.cmd.Process.Pid, c.fd(t, "export 0"))
	c.want(t, success, "release 0")
	s.checkCharged(t, 8*mib)
	m.checkLedger(t, 0, 8*mib)
	c.want(t, success, "release 1")
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}

func TestImportedPoolsAreTheExporters(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	a, b := m.client(t, 0), m.client(t, 0)
	a.want(t, success, "pool 0 0")
	a.want(t, success, "from-pool 0 %d 0", 8*mib)
	fd := a.fd(t, "pool-export 0")
	a.want(t, success, "pointer-export 0 7")
	b.want(t, success, "pool-import 1 %d %s", a.cmd.Process.Pid, fd)
	b.want(t, success, "pointer-import 0 7 1")
	s.checkCharged(t, 8*mib)
	// It gives nothing, and what it has reserved is not b's.
	b.want(t, invalidValue, "from-pool 1 4096 1")
	s.checkCharged(t, 8*mib)
	b.want(t, success, "trim 1 0")
	b.want(t, success, "threshold 1 0")
	b.want(t, figures(24*mib, 32*mib), "info")
	b.want(t, success, "free-async 0")
	b.want(t, invalidValue, "free-async 0")
	b.want(t, success, "pool-destroy 1")
	s.checkCharged(t, 8*mib)
	m.checkLedger(t, 0, 8*mib)
}

func TestOpenedAndMappedPointersAreNotCharged(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	a, b := m.client(t, 0), m.client(t, 0)
	a.want(t, success, "alloc 0 %d", 16*mib)
	a.want(t, success, "ipc-get 0 3")
	b.want(t, success, "ipc-open 0 3")
	b.want(t, success, "ipc-open 1 3")
	b.want(t, success, "ipc-close 0")
	b.want(t, invalidValue, "ipc-close 0")
	b.want(t, success, "external 2 %d", 64*mib) // more than the share has
	s.checkCharged(t, 16*mib)
	m.checkLedger(t, 0, 16*mib)
	b.want(t, success, "free 2")
	b.want(t, invalidValue, "free 2")
	b.want(t, success, "reset 0") // with a pointer still open
	s.checkCharged(t, 16*mib)
	a.want(t, success, "free 0")
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}

func TestMulticastObjectsHaveNoMemory(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	c := m.client(t, 0)
	c.want(t, success, "create 0 %d 1 0", 8*mib)
	c.want(t, success, "multicast 1 0 %d", 64*mib)
	c.want(t, success, "reserve 2 %d", 64*mib)
	c.want(t, success, "map 2 1 0 %d", 64*mib)
	s.checkCharged(t, 8*mib)
	c.want(t, success, "unmap 2 0 %d", 64*mib)
	c.want(t, success, "release 1")
	s.checkCharged(t, 8*mib)
	c.want(t, success, "release 0")
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}
