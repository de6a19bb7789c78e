package preload_test

import (
	"flag"
	"fmt"
	"strconv"
	"testing"
)

var kills = flag.Int("kills", 10000, "how many processes the storms kill together")

// Of testdata/work.h: what a process holds at most, whatever its kind of work.
const workBytes = 32 * mib

// workKinds is how many kinds of work there are, and so of survivors.
const workKinds = 4

// stormReport is what testdata/storm.c says at its end.
type stormReport struct {
	kills, inside, refused, odd, rounds, longestUS int
}

func (m *machine) storm(t *testing.T, servers, children, kills int) stormReport {
	t.Helper()
	cmd := m.command(t, compile(t, "storm"), strconv.Itoa(servers), strconv.Itoa(children), strconv.Itoa(kills), "1")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var r stormReport
	if _, err := fmt.Sscan(string(output), &r.kills, &r.inside, &r.refused, &r.odd, &r.rounds, &r.longestUS); err != nil {
		t.Fatalf("%q: %v", output, err)
	}
	t.Logf("%d kills, %d of them inside a call; the longest call took %d us", r.kills, r.inside, r.longestUS)
	return r
}

// check holds the storm to what is promised whatever the limit.
func (r stormReport) check(t *testing.T, kills int) {
	t.Helper()
	if r.kills < kills || r.inside < kills/10 || r.rounds < kills/100 {
		t.Errorf("%d processes were killed, %d inside a call, while each survivor did %d rounds: this was no storm", r.kills, r.inside, r.rounds)
	}
	if r.odd != 0 {
		t.Errorf("%d calls failed that should not", r.odd)
	}
	// The one duration that is a promise: a process that dies delays the
	// others by a moment.
	if r.longestUS > 1000000 {
		t.Errorf("a survivor's call took %d us", r.longestUS)
	}
}

// checkEmpty expects that nothing of the dead is left, once somebody looks.
func (m *machine) checkEmpty(t *testing.T, shares ...share) {
	t.Helper()
	m.checkLedger(t, 0, 0)
	c := m.client(t, 0)
	for _, s := range shares {
		s.checkCharged(t, 0)
	}
	c.exit(t)
}

// Everybody's most fits, so a refusal has no cause. The last survivors find the
// memory of the dead when they need it.
func TestKilledProcessesLeaveNothingBehind(t *testing.T) {
	const servers, most = 6, (6 + workKinds) * workBytes
	for _, test := range []struct{ shares, kills int }{{1, *kills * 8 / 10}, {2, *kills / 10}} {
		t.Run(fmt.Sprintf("%d shares", test.shares), func(t *testing.T) {
			m := newMachine(t, 1)
			var shares []share
			for i := range test.shares {
				shares = append(shares, m.newShare(t, 0, strconv.Itoa(i), most/uint64(test.shares)))
			}
			r := m.storm(t, servers, 1, test.kills)
			r.check(t, test.kills)
			if r.refused != 0 {
				t.Errorf("%d allocations were refused, though all would fit", r.refused)
			}
			if peak := m.ledger(t, 0).Peak; peak > most {
				t.Errorf("the hardware once gave out %d MiB, over the limit of %d", peak>>20, most>>20)
			}
			m.checkEmpty(t, shares...)
		})
	}
}

// With a third of what everybody wants, refusals are right, and overshoot is not.
func TestKilledProcessesNeverRaiseTheLimit(t *testing.T) {
	m := newMachine(t, 1)
	const limit = 96 * mib
	s := m.newShare(t, 0, "one", limit)
	r := m.storm(t, 4, 2, *kills/10)
	r.check(t, *kills/10)
	if r.refused == 0 {
		t.Error("nobody was refused: memory was never short")
	}
	if usage := m.ledger(t, 0); usage.Peak > limit || usage.Peak < limit*3/4 {
		t.Errorf("the hardware once gave out %d MiB; the limit is %d", usage.Peak>>20, limit>>20)
	}
	m.checkEmpty(t, s)
}
