package cdi

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func openAgent(t testing.TB, dir string) *Agent {
	t.Helper()
	a, err := OpenAgent(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func somePage() Page {
	page := Page{CorrectionPermille: 1200, BusyPermille: 340, ActualBytes: 5 << 33, CorePermille: 700}
	for i := range page.Slots {
		page.Slots[i] = SlotCost{OverheadMiB: uint32(1000 + i), Generation: uint32(i * 7)}
	}
	return page
}

// agentContent is the whole page as a file.
func agentContent(t *testing.T, dir string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, agentFile))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// takePage reads all that a page says, where C reads it.
func takePage(t *testing.T, content []byte) (page Page, seq, time uint64) {
	t.Helper()
	c := abi(t)
	page.CorrectionPermille = uint32(take(t, c, content, "aq_agent.k_permille", 4))
	page.BusyPermille = uint32(take(t, c, content, "aq_agent.util_permille", 4))
	page.ActualBytes = take(t, c, content, "aq_agent.actual_bytes", 8)
	page.CorePermille = uint32(take(t, c, content, "aq_agent.core_permille", 4))
	overhead, generation := offset(t, c, "aq_agent.slot_overhead_mib"), offset(t, c, "aq_agent.slot_generation")
	for i := range page.Slots {
		page.Slots[i].OverheadMiB = uint32(content[overhead+4*i]) | uint32(content[overhead+4*i+1])<<8
		page.Slots[i].Generation = uint32(content[generation+i])
		clear(content[overhead+4*i : overhead+4*i+4])
		content[generation+i] = 0
	}
	return page, take(t, c, content, "aq_agent.seq", 8), take(t, c, content, "aq_agent.t_mono", 8)
}

func TestPageIsWrittenWhereTheLibraryReadsIt(t *testing.T) {
	dir := shareFiles(t, Quota{ContextMiB: 300, CorePermille: 125})
	agent := openAgent(t, dir)
	before := monotonicNanoseconds()
	if err := agent.Write(somePage()); err != nil {
		t.Fatal(err)
	}
	content := agentContent(t, dir)
	got, seq, time := takePage(t, content)
	want := somePage()
	for i := range want.Slots {
		want.Slots[i].Generation &= 0xff
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
	if seq != 2 || time < before || time > monotonicNanoseconds() {
		t.Errorf("seq %d, time %d, written after %d", seq, time, before)
	}
	c := abi(t)
	if context := take(t, c, content, "aq_agent.context_mib", 4); context != 300 || agent.ContextMiB() != 300 {
		t.Errorf("a context is charged %d MiB, the agent says %d, want 300 as prepared", context, agent.ContextMiB())
	}
	take(t, c, content, "aq_agent.magic", 4)
	take(t, c, content, "aq_agent.abi", 4)
	for i, b := range content {
		if b != 0 {
			t.Errorf("byte %d is %#x, but no field lies there", i, b)
		}
	}
	if err := agent.Write(Page{TimeNS: 12345}); err != nil {
		t.Fatal(err)
	}
	got, seq, time = takePage(t, agentContent(t, dir))
	if !cmp.Equal(got, Page{}) || seq != 4 || time != 12345 {
		t.Errorf("an empty page of time 12345 after a full one: seq %d, time %d, %s", seq, time, cmp.Diff(Page{}, got))
	}
}

// A plugin that is killed while it writes leaves an odd number and any mixture of fields.
func TestWriteGoesOnAfterACrash(t *testing.T) {
	dir := shareFiles(t, Quota{ContextMiB: 300})
	torn := openAgent(t, dir)
	if err := torn.Write(somePage()); err != nil {
		t.Fatal(err)
	}
	torn.store64(agentSeq, 3)
	for range 200 {
		at := agentTime + rand.IntN(agentSize-agentTime)
		if at < agentContext || at >= agentContext+4 {
			torn.data[at] = byte(rand.Uint32())
		}
	}
	if err := openAgent(t, dir).Write(somePage()); err != nil {
		t.Fatal(err)
	}
	got, seq, _ := takePage(t, agentContent(t, dir))
	want := somePage()
	for i := range want.Slots {
		want.Slots[i].Generation &= 0xff
	}
	if diff := cmp.Diff(want, got); diff != "" || seq != 4 {
		t.Errorf("seq is %d, want 4; page (-want +got):\n%s", seq, diff)
	}
}

// A reader that follows the rule never sees a mixture of two pages.
func TestReadersSeeWholePages(t *testing.T) {
	dir := shareFiles(t, Quota{})
	agent, reader := openAgent(t, dir), openAgent(t, dir)
	done := make(chan error, 1)
	go func() {
		defer close(done)
		for n := uint32(1); n <= 2000; n++ {
			page := Page{CorrectionPermille: n, BusyPermille: n, ActualBytes: uint64(n), CorePermille: n, TimeNS: uint64(n)}
			for i := range page.Slots {
				page.Slots[i].OverheadMiB = n
			}
			if err := agent.Write(page); err != nil {
				done <- err
				return
			}
		}
	}()
	for last := uint64(0); last < 2000; {
		seq := reader.load64(agentSeq)
		n := reader.load64(agentTime)
		same := uint64(reader.load32(agentCorrection)) == n && uint64(reader.load32(agentBusy)) == n &&
			reader.load64(agentActual) == n && uint64(reader.load32(agentCores)) == n
		for i := 0; i < slotCount; i += 73 {
			same = same && uint64(reader.load32(agentOverhead+4*i)) == n
		}
		if seq%2 == 1 || seq != reader.load64(agentSeq) {
			select {
			case err, failed := <-done:
				if failed {
					t.Fatal(err)
				}
			default:
			}
			continue
		}
		if !same && n != 0 {
			t.Fatalf("page %d is a mixture", n)
		}
		last = n
	}
}

func TestBadPagesAreRefused(t *testing.T) {
	dir := shareFiles(t, Quota{})
	path := filepath.Join(dir, agentFile)
	agent := openAgent(t, dir)
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if err := agent.Write(Page{}); err == nil || !strings.Contains(err.Error(), "has 100 bytes, want 4096") {
		t.Errorf("truncated: got error %v", err)
	}
	if _, err := OpenAgent(dir); err == nil || !strings.Contains(err.Error(), "has 100 bytes, want 4096") {
		t.Errorf("short: got error %v", err)
	}
	write(t, path, strings.Repeat("x", agentSize))
	if _, err := OpenAgent(dir); err == nil || !strings.Contains(err.Error(), "is not an agent page") {
		t.Errorf("garbage: got error %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := agent.Write(Page{}); !errors.Is(err, ErrRemoved) {
		t.Errorf("removed: got error %v", err)
	}
}
