package preload_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// racers starts processes that allocate against each other and waits until all
// have done their rounds; it returns what they were refused.
func (m *machine) racers(t *testing.T, processes int, args ...string) (all []*client, large, small int) {
	t.Helper()
	for range processes {
		all = append(all, m.startClient(t, compile(t, "racer"), args...))
	}
	for _, c := range all {
		line, err := c.out.ReadString('\n')
		if err != nil {
			t.Fatalf("a racer ended: %v\n%s", err, c.stderr.String())
		}
		var l, s, odd int
		if _, err := fmt.Sscan(line, &l, &s, &odd); err != nil {
			t.Fatal(err)
		}
		if odd != 0 {
			t.Errorf("%d calls failed that should not", odd)
		}
		large, small = large+l, small+s
	}
	return all, large, small
}

func TestRacingProcessesNeverHoldMoreThanTheLimit(t *testing.T) {
	const limit = 64 * mib
	for _, test := range []struct {
		processes int
		threads   string
		rounds    string
		shares    int
	}{{2, "1", "300", 1}, {4, "2", "300", 2}, {8, "1", "300", 1}, {16, "1", "200", 3}, {32, "1", "100", 1}, {64, "1", "50", 2}} {
		t.Run(fmt.Sprintf("%d processes of %s threads with %d shares", test.processes, test.threads, test.shares), func(t *testing.T) {
			m := newMachine(t, 1)
			var shares []share
			rest := uint64(limit)
			for i := range test.shares {
				size := rest
				if i < test.shares-1 {
					size = rest/uint64(test.shares-i)/mib*mib | mib // an odd number of MiB
				}
				shares = append(shares, m.newShare(t, 0, strconv.Itoa(i), size))
				rest -= size
			}
			// Together they want many times the limit.
			all, refused, _ := m.racers(t, test.processes, test.threads, test.rounds, "20", "6", "1")
			if refused == 0 {
				t.Error("nobody was refused: this was no race")
			}
			if peak := m.ledger(t, 0).Peak; peak > limit {
				t.Errorf("the hardware once gave out %d MiB, over the limit of %d", peak>>20, limit>>20)
			}
			taken := 0
			for _, c := range all {
				n, err := strconv.Atoi(c.do(t, ""))
				if err != nil {
					t.Fatal(err)
				}
				taken += n
			}
			if taken != limit/(2*mib) {
				t.Errorf("at the end %d MiB could be taken, want %d", 2*taken, limit>>20)
			}
			usage := m.ledger(t, 0)
			if usage.Used != limit || usage.Peak != limit {
				t.Errorf("at the end the hardware has given out %d MiB, %d at most, want %d", usage.Used>>20, usage.Peak>>20, limit>>20)
			}
			var charged uint64
			for _, s := range shares {
				used, _ := s.charged(t)
				charged += used
			}
			if charged != limit {
				t.Errorf("%d MiB are charged, want %d", charged>>20, limit>>20)
			}
		})
	}
}

// What everybody may hold at once is the limit, so no refusal has a cause, and
// none may come from another's allocation that is only being tried. A small
// allocation needs a block of quota for a moment, which the others may have.
func TestNobodyIsRefusedWhatFits(t *testing.T) {
	const processes, threads, most, piece = 4, 2, 3, 8
	for _, small := range []string{"0", "1"} {
		t.Run("small "+small, func(t *testing.T) {
			m := newMachine(t, 1)
			blocks := 0
			if small == "1" {
				blocks = 2 * processes // one each
			}
			s := m.newShare(t, 0, "one", uint64(processes*threads*most*piece+blocks)*mib)
			all, refused, _ := m.racers(t, processes, strconv.Itoa(threads), "400",
				strconv.Itoa(most), strconv.Itoa(piece), small)
			if refused != 0 {
				t.Errorf("%d allocations were refused, though all would fit", refused)
			}
			for _, c := range all {
				c.exit(t)
			}
			m.checkLedger(t, 0, 0)
			s.checkCharged(t, 0)
		})
	}
}

func TestAKilledProcessesMemoryIsFoundWhenItIsNeeded(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 16*mib)
	survivor := m.client(t, 0)
	survivor.want(t, success, "alloc 0 %d", 2*mib)
	for range 3 {
		victim := m.client(t, 0)
		victim.want(t, success, "alloc 0 %d", 14*mib)
		survivor.want(t, outOfMemory, "alloc 1 %d", 2*mib)
		victim.cmd.Process.Kill()
		victim.cmd.Wait()
		survivor.want(t, success, "alloc 1 %d", 14*mib)
		survivor.want(t, success, "free 1")
	}
}

// Containers of one claim have pid namespaces of their own, in which everybody
// is number 1.
func TestProcessesOfOtherPIDNamespacesCount(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	var clients []*client
	for range 2 {
		c := &client{cmd: m.command(t, compile(t, "client"))}
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		c.start(t)
		c.want(t, success, "init")
		c.want(t, success, "device 0")
		c.want(t, success, "alloc 0 %d", 6*mib)
		clients = append(clients, c)
	}
	s.checkCharged(t, 12*mib)
	clients[1].want(t, outOfMemory, "alloc 1 %d", 8*mib)
	clients[0].cmd.Process.Kill()
	clients[0].cmd.Wait()
	clients[1].want(t, success, "alloc 1 %d", 8*mib)
	s.checkCharged(t, 14*mib)
}

func TestAForkedChildHasAnAccountOfItsOwn(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 8*mib)
	c.want(t, success, "fork")
	// The child: CUDA does not work in it, and that is the driver's to say.
	if answer := c.do(t, "alloc 1 %d", 2*mib); answer == success || answer == outOfMemory {
		t.Errorf("the child's allocation answers %s, want what the driver says", answer)
	}
	c.do(t, "free 0")
	s.checkCharged(t, 8*mib)
	c.want(t, "child 0", "exit 0")
	// The parent: still alive in the eyes of the others, and charged.
	s.checkCharged(t, 8*mib)
	other := m.client(t, 0)
	other.want(t, outOfMemory, "alloc 0 %d", 10*mib)
	other.want(t, success, "alloc 0 %d", 8*mib)
	c.want(t, success, "free 0")
	s.checkCharged(t, 8*mib)
}

func TestAForkBeforeCUDAIsTwoProcesses(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	c := m.startClient(t, compile(t, "client"), "dlsym")
	c.want(t, success, "fork")
	c.want(t, success, "init")
	c.want(t, success, "device 0")
	c.want(t, success, "alloc 0 %d", 16*mib)
	s.checkCharged(t, 16*mib)
	c.want(t, "child 0", "exit 0")
	c.want(t, success, "init")
	c.want(t, success, "device 0")
	c.want(t, success, "alloc 0 %d", 16*mib)
	s.checkCharged(t, 16*mib)
}

func TestAProcessThatClosedOurDescriptorIsChargedAgain(t *testing.T) {
	for _, test := range []struct {
		name string
		had  uint64 // what b has before: then it has a slot, else it takes a's
	}{{"its slot is taken", 0}, {"its slot is freed", 2 * mib}} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, 1)
			s := m.newShare(t, 0, "one", 16*mib)
			a, b := m.client(t, 0), m.idleClient(t)
			a.want(t, success, "alloc 0 %d", 8*mib)
			if test.had > 0 {
				b.want(t, success, "device 0")
				b.want(t, success, "alloc 9 %d", test.had)
			}
			a.want(t, success, "close-ours")
			a.want(t, success, "alloc 1 %d", 4*mib) // nobody has noticed yet
			s.checkCharged(t, 12*mib+test.had)
			// Its lock is gone, so b takes it for dead: when it wants a slot,
			// or when memory is short...
			b.want(t, success, "device 0")
			b.want(t, success, "alloc 0 %d", 6*mib-test.had)
			// ...and its next call puts it back on the books, in a new slot.
			a.want(t, outOfMemory, "alloc 2 %d", 2*mib)
			s.checkCharged(t, 18*mib)
			a.want(t, success, "free 0")
			s.checkCharged(t, 10*mib)
			b.want(t, success, "alloc 1 %d", 6*mib)
			b.want(t, outOfMemory, "alloc 2 %d", 2*mib) // a is alive again
			s.checkCharged(t, 16*mib)
		})
	}
}

func TestAClosedDescriptorIsOpenedAgainWhenMemoryIsShort(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	a, b := m.client(t, 0), m.client(t, 0)
	a.want(t, success, "alloc 0 %d", 8*mib)
	a.want(t, success, "close-ours")
	a.want(t, outOfMemory, "alloc 1 %d", 10*mib)
	b.want(t, outOfMemory, "alloc 0 %d", 10*mib)
	s.checkCharged(t, 8*mib)
}

// neighbour stands for another living process: it owns a slot and writes what
// it likes into it.
type neighbour struct {
	file *os.File
	slot int64
}

func (s share) neighbour(t testing.TB, slot int64) neighbour {
	t.Helper()
	s.lock(t, lockBase+slot, 1)
	file, err := os.OpenFile(filepath.Join(s.dir, "usage"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	n := neighbour{file, slot}
	n.write(t, 20, binary.NativeEndian.AppendUint32(nil, uint32(slot)+1)) // hi
	return n
}

func (n neighbour) write(t testing.TB, offset int64, data []byte) {
	t.Helper()
	if _, err := n.file.WriteAt(data, offset); err != nil {
		t.Fatal(err)
	}
}

// charge says that the neighbour holds so many MiB, some of them pending.
func (n neighbour) charge(t testing.TB, used, pending uint64) {
	t.Helper()
	n.write(t, headerSize+n.slot*slotSize, binary.NativeEndian.AppendUint64(nil, pending<<fieldBits|used))
}

// gate says whether somebody waits for pending charges to settle.
func (n neighbour) gate(t testing.TB) bool {
	t.Helper()
	var until [8]byte
	if _, err := n.file.ReadAt(until[:], 40); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(until[:]) != 0
}

func TestWhatMayYetBeGivenBackIsWaitedFor(t *testing.T) {
	tests := []struct {
		name       string
		used       uint64 // MiB that the neighbour ends with
		want       string
		peakCharge uint64
	}{{"given back", 0, success, 8 * mib}, {"kept", 16, outOfMemory, 16 * mib}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, 1)
			s := m.newShare(t, 0, "one", 16*mib)
			n := s.neighbour(t, 5)
			c := m.client(t, 0)
			n.charge(t, 16, 16)
			answer := make(chan string)
			go func() { answer <- c.do(t, "alloc 0 %d", 8*mib) }()
			for !n.gate(t) {
				select {
				case got := <-answer:
					t.Fatalf("answered %s without waiting", got)
				default:
				}
			}
			n.charge(t, test.used, 0)
			if got := <-answer; got != test.want {
				t.Errorf("answered %s, want %s", got, test.want)
			}
			s.checkCharged(t, test.peakCharge)
			if n.gate(t) {
				t.Error("the gate is still shut")
			}
		})
	}
}

func TestALivingNeighboursSlotIsLeftAlone(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	n := s.neighbour(t, 0)
	n.charge(t, 10, 0)
	c := m.client(t, 0)
	c.want(t, outOfMemory, "alloc 0 %d", 8*mib)
	c.want(t, success, "alloc 0 %d", 6*mib)
	s.checkCharged(t, 16*mib)
	// A figure that makes no sense is the neighbour's to answer for.
	n.write(t, headerSize, bytes.Repeat([]byte{0xff}, 8))
	c.want(t, outOfMemory, "alloc 1 1")
	c.want(t, figures(0, 16*mib), "info")
	c.want(t, success, "free 0")
}

// A process that was stopped while it held the region's mutex, or that died
// with the gate shut, delays the others and no more.
func TestAStoppedProcessDoesNotStopTheOthers(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	s.lock(t, lockBase-1, 1)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 8*mib)
	c.want(t, outOfMemory, "alloc 1 %d", 10*mib)
	c.want(t, success, "alloc 1 %d", 8*mib)
	c.want(t, success, "free 1")
	c.want(t, success, "alloc 1 %d", 8*mib)
}

// Our descriptor is out of the way, and not inherited by programs it starts.
func TestDescriptorIsHighAndClosedOnExec(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 16*mib)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 8*mib)
	dir := fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, entry := range entries {
		target, _ := os.Readlink(filepath.Join(dir, entry.Name()))
		if !strings.HasSuffix(target, "/usage") {
			continue
		}
		found++
		if n, _ := strconv.Atoi(entry.Name()); n < 900 {
			t.Errorf("the descriptor is %d", n)
		}
		info := readFile(t, fmt.Sprintf("/proc/%d/fdinfo/%s", c.cmd.Process.Pid, entry.Name()))
		if !strings.Contains(info, "flags:\t02") { // O_CLOEXEC
			t.Errorf("the descriptor is inherited:\n%s", info)
		}
	}
	if found != 1 {
		t.Errorf("%d descriptors of the region are open, want 1", found)
	}
}

// Every kind of allocation at once, in threads, is charged right to the end.
func TestThreadsOfOneProcessAreToldApart(t *testing.T) {
	const threads = 16
	for _, shares := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d shares", shares), func(t *testing.T) {
			m := newMachine(t, 1)
			var all []share
			for i := range shares {
				all = append(all, m.newShare(t, 0, strconv.Itoa(i), uint64(threads*workBytes/shares)))
			}
			c := m.startClient(t, compile(t, "crowd"), strconv.Itoa(threads), "300")
			if line, err := c.out.ReadString('\n'); err != nil || line != "0 0\n" {
				t.Errorf("%q of the calls were refused or failed: %v\n%s", line, err, c.stderr.String())
			}
			if peak := m.ledger(t, 0).Peak; peak > threads*workBytes {
				t.Errorf("the hardware once gave out %d MiB", peak>>20)
			}
			// Pools of a process keep what was freed until somebody looks.
			used := m.ledger(t, 0).Used
			var charged uint64
			for _, s := range all {
				n, _ := s.charged(t)
				charged += n
			}
			if charged < used {
				t.Errorf("the hardware has given out %d MiB and %d are charged", used>>20, charged>>20)
			}
			c.exit(t)
			m.checkEmpty(t, all...)
		})
	}
}
