package preload_test

import (
	"testing"
)

// costlyMachine is one whose contexts cost 100 MiB, and a share of it whose agent
// knows that.
func costlyMachine(t testing.TB, memory uint64) (*machine, share) {
	t.Helper()
	m := newMachineOf(t, hardware(1, 100))
	s := m.newShare(t, 0, "one", memory)
	s.setAgent(t, map[int64]uint32{contextMiBOffset: 100})
	return m, s
}

func TestTheFirstContextIsCharged(t *testing.T) {
	tests := []struct{ name, begin, end string }{
		{"primary", "primary 0", "release-primary 0"},
		{"primary, reset", "primary 0", "reset 0"},
		{"cuCtxCreate", "context-v1 0 0", "context-destroy-v1 0"},
		{"cuCtxCreate_v2", "context 0 0", "context-destroy 0"},
		{"cuCtxCreate_v3", "context-v3 0 0", "context-destroy 0"},
		{"cuCtxCreate_v4", "context-v4 0 0", "context-destroy 0"},
		{"green", "green 0 0", "green-destroy 0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, s := costlyMachine(t, 256*mib)
			one, two, three := m.idleClient(t), m.idleClient(t), m.idleClient(t)
			check := func(want uint64) {
				t.Helper()
				s.checkCharged(t, want)
				m.checkLedger(t, 0, want)
			}
			check(0)
			one.want(t, success, "%s", test.begin)
			check(100 * mib)
			if got := s.contexts(t, 0); got != 100*mib {
				t.Errorf("the slot says that contexts cost %d MiB, want 100", got>>20)
			}
			two.want(t, success, "%s", test.begin)
			check(200 * mib)
			for _, begin := range []string{"primary 0", "context 0 0", "context-v3 0 0", "context-v4 0 0", "green 0 0"} {
				three.want(t, outOfMemory, "%s", begin)
			}
			check(200 * mib)
			two.want(t, success, "%s", test.end)
			check(100 * mib)
			three.want(t, success, "%s", test.begin)
			check(200 * mib)
			one.exit(t)
			three.want(t, success, "%s", test.end)
			two.want(t, success, "%s", test.begin)
			two.want(t, success, "%s", test.end)
			m.checkLedger(t, 0, 0)
			m.idleClient(t).want(t, success, "%s", test.begin) // frees what the dead left
			check(100 * mib)
		})
	}
}

func TestAProcessPaysOnceForItsContexts(t *testing.T) {
	m := newMachine(t, 2)
	s := m.newShare(t, 0, "one", 256*mib)
	s.setAgent(t, map[int64]uint32{contextMiBOffset: 100})
	c := m.idleClient(t)
	c.want(t, success, "context 2 1") // on the card without limit
	s.checkCharged(t, 0)
	for _, call := range []string{"primary 0", "context 0 0", "context 1 0", "green 0 0", "primary 0",
		"context-destroy 0", "release-primary 0", "release-primary 0", "context-destroy 1"} {
		c.want(t, success, "%s", call)
		s.checkCharged(t, 100*mib)
	}
	c.want(t, success, "green-destroy 0") // the last, and with it the primary
	s.checkCharged(t, 0)
	c.want(t, success, "primary 0")
	s.checkCharged(t, 100*mib)
	c.want(t, success, "reset 0")
	s.checkCharged(t, 0)
}

func TestWhatTheAgentMeasuredReplacesTheReserve(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 256*mib)
	s.setAgent(t, map[int64]uint32{contextMiBOffset: 100})
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 100*mib)
	mine := s.generation(t, 0)

	s.setOverhead(t, 0, mine, 50) // less: the view shows it at once
	c.want(t, figures(106*mib, 256*mib), "info")
	s.checkCharged(t, 150*mib)
	if got := s.contexts(t, 0); got != 50*mib {
		t.Errorf("the slot says that contexts cost %d MiB, want 50", got>>20)
	}
	s.setOverhead(t, 0, mine, 500) // more than there is
	c.want(t, outOfMemory, "alloc 1 1")
	s.checkCharged(t, 600*mib)
	c.want(t, figures(0, 256*mib), "info")
	c.want(t, success, "free 0")
	c.want(t, outOfMemory, "alloc 1 1")
	s.setOverhead(t, 0, mine+1, 9) // of another process
	c.want(t, outOfMemory, "alloc 1 1")
	s.checkCharged(t, 500*mib)
	s.setOverhead(t, 0, mine+256, 0) // not measured
	c.want(t, outOfMemory, "alloc 1 1")
	s.setOverhead(t, 0, mine, 20)
	c.want(t, success, "alloc 1 1")
	s.checkCharged(t, 22*mib)
	c.want(t, success, "reset 0")
	s.checkCharged(t, 0)
	c.want(t, success, "device 0") // of this one nothing is measured yet
	s.checkCharged(t, 100*mib)
}

func TestMeasuredCostIsSpreadOverTheShares(t *testing.T) {
	m := newMachine(t, 1)
	one, two := m.newShare(t, 0, "one", 60*mib), m.newShare(t, 0, "two", 60*mib)
	one.setAgent(t, map[int64]uint32{contextMiBOffset: 100})
	c := m.client(t, 0)
	one.checkCharged(t, 60*mib)
	two.checkCharged(t, 40*mib)
	one.setOverhead(t, 0, one.generation(t, 0), 150)
	c.want(t, outOfMemory, "alloc 0 1")
	one.checkCharged(t, 90*mib)
	two.checkCharged(t, 60*mib)
	one.setOverhead(t, 0, one.generation(t, 0), 90)
	c.want(t, outOfMemory, "alloc 0 %d", 32*mib)
	c.want(t, success, "alloc 0 %d", 30*mib)
	c.want(t, outOfMemory, "alloc 1 1")
}

func TestGrowthOfTheHeapIsCharged(t *testing.T) {
	m, s := costlyMachine(t, 256*mib)
	c := m.client(t, 0)
	check := func(charged, given uint64) {
		t.Helper()
		s.checkCharged(t, charged)
		m.checkLedger(t, 0, given)
	}
	c.want(t, success, "limit 2 %d", 64*mib) // of which 8 are in the context's cost
	check(156*mib, 156*mib)
	c.want(t, success, "limit 1 %d", 32*mib)
	check(186*mib, 186*mib)
	c.want(t, outOfMemory, "limit 2 %d", 200*mib)
	c.want(t, "215", "limit 7 1")
	c.want(t, success, "limit 0 100000") // stacks are the agent's to measure
	check(186*mib, 186*mib)
	c.want(t, success, "limit 2 %d", 10*mib)
	check(132*mib, 132*mib)
	c.want(t, success, "context 0 0")
	c.want(t, success, "limit 2 %d", 64*mib) // the second context's own
	check(188*mib, 288*mib)
	c.want(t, success, "context-destroy 0")
	check(132*mib, 132*mib)
	c.want(t, success, "reset 0")
	check(0, 0)
}

func TestAContextThatTheDriverRefusesCostsNothing(t *testing.T) {
	m := newMachineOf(t, hardware(1, 17<<10)) // more than the card has
	s := m.newShare(t, 0, "one", 256*mib)
	s.setAgent(t, map[int64]uint32{contextMiBOffset: 100})
	c := m.idleClient(t)
	for _, begin := range []string{"primary 0", "context 0 0", "context-v3 0 0", "context-v4 0 0", "green 0 0"} {
		c.want(t, outOfMemory, "%s", begin)
		s.checkCharged(t, 0)
	}
}

func TestAForkedChildPaysForItsOwnContext(t *testing.T) {
	m, s := costlyMachine(t, 256*mib)
	c := m.idleClient(t)
	c.want(t, success, "fork") // before the driver is used for more
	c.want(t, "3", "primary 0")
	s.checkCharged(t, 0)
	c.want(t, "child 0", "exit 0")
	c.want(t, success, "primary 0")
	s.checkCharged(t, 100*mib)
}

func TestArraysEndWithTheLastGreenContext(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	c.want(t, success, "green 0 0")
	c.want(t, success, "array 0 4096 256")
	s.checkCharged(t, 4*mib)
	c.want(t, success, "release-primary 0")
	s.checkCharged(t, 4*mib)
	c.want(t, success, "green-destroy 0")
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}
