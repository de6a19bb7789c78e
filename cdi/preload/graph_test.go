package preload_test

import (
	"fmt"
	"testing"
)

func TestMemoryOfGraphsIsCharged(t *testing.T) {
	const limit = 64 * mib
	makes := map[string][]string{
		"captured": {fmt.Sprintf("capture 0 %d 1", 20*mib)},
		"built":    {"graph 0", fmt.Sprintf("graph-alloc 0 0 %d 0", 20*mib), "graph-free 0 0"},
	}
	for name, made := range makes {
		for how := range 4 { // to instantiate; the last uploads too
			t.Run(fmt.Sprintf("%s %d", name, how), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, 1)
				s := m.newShare(t, 0, "one", limit)
				c := m.client(t, 0)
				check := func(want uint64) {
					t.Helper()
					s.checkCharged(t, want)
					m.checkLedger(t, 0, want)
				}
				for _, command := range made {
					c.want(t, success, "%s", command)
				}
				check(0)
				c.want(t, success, "instantiate 0 0 %d", how)
				if how == 3 {
					check(20 * mib)
				} else {
					check(0)
				}
				c.want(t, success, "launch 0")
				c.want(t, success, "launch 0") // needs no more
				check(20 * mib)
				c.want(t, figures(44*mib, limit), "info")
				c.want(t, success, "sync")
				// Another takes from the same pool.
				c.want(t, success, "capture 1 %d 1", 30*mib)
				c.want(t, success, "instantiate 1 1 1")
				c.want(t, success, "upload 1")
				check(30 * mib)
				c.want(t, success, "launch 1")
				c.want(t, success, "sync")
				// The pool gives way to what needs the room.
				c.want(t, success, "alloc 1 %d", limit)
				check(limit)
				c.want(t, outOfMemory, "launch 0")
				c.want(t, success, "free 1")
				c.want(t, success, "launch 0")
				c.want(t, success, "sync")
				check(20 * mib)
				c.want(t, success, "exec-destroy 0")
				c.want(t, success, "exec-destroy 1")
				c.want(t, success, "graph-trim 0")
				check(0)
			})
		}
	}
}

func TestAGraphThatNeedsMoreThanTheShareIsRefused(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	// A pool that is there does not make room for what needs more than all.
	c.want(t, success, "capture 0 %d 1", 30*mib)
	c.want(t, success, "instantiate 0 0 1")
	c.want(t, success, "launch 0")
	c.want(t, success, "sync")
	c.want(t, success, "capture 1 %d 1", 70*mib)
	c.want(t, success, "instantiate 1 1 1")
	c.want(t, outOfMemory, "launch 1")
	c.want(t, outOfMemory, "upload 1")
	c.want(t, outOfMemory, "instantiate 2 1 3")
	if peak := m.ledger(t, 0).Peak; peak > 64*mib {
		t.Errorf("the hardware once gave out %d MiB, over the limit of 64", peak>>20)
	}
	s.checkCharged(t, m.ledger(t, 0).Used)
	c.want(t, success, "launch 0")
}

// Without a node that frees it, what a graph allocated stays.
func TestMemoryThatGraphsLeaveIsInTheWayOfOthers(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	check := func(want uint64) {
		t.Helper()
		s.checkCharged(t, want)
		m.checkLedger(t, 0, want)
	}
	for graph := range 2 {
		c.want(t, success, "graph %d", graph)
		c.want(t, success, "graph-alloc %[1]d %[1]d %[2]d 0", graph, 40*mib)
		c.want(t, success, "instantiate %[1]d %[1]d 1", graph)
	}
	c.want(t, success, "launch 0")
	check(40 * mib)
	c.want(t, outOfMemory, "launch 1")
	check(40 * mib)
	c.want(t, success, "free 0")
	c.want(t, success, "sync")
	c.want(t, success, "launch 1")
	check(40 * mib)
	c.want(t, figures(24*mib, 64*mib), "info")
	c.want(t, success, "free-async 1")
	c.want(t, success, "graph-trim 0")
	check(0)
}

func TestGraphsOfAGPUWithoutAShareAreNotLimited(t *testing.T) {
	m := newMachine(t, 2)
	s := m.newShare(t, 0, "one", 8*mib)
	c := m.client(t, 1)
	c.want(t, success, "graph 0")
	c.want(t, success, "graph-alloc 0 0 %d 1", 40*mib)
	c.want(t, success, "instantiate 0 0 1")
	c.want(t, success, "launch 0")
	s.checkCharged(t, 0)
	m.checkLedger(t, 1, 40*mib)
	c.want(t, success, "free 0")
	c.want(t, success, "graph-trim 1")
	m.checkLedger(t, 1, 0)
	c.want(t, success, "exec-destroy 0")
}
