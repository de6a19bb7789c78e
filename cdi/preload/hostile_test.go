package preload_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// container is another container on the same machine.
func (m *machine) container(t *testing.T) *machine {
	t.Helper()
	other := &machine{root: m.root, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(other.dir, sharesDir), 0o755); err != nil {
		t.Fatal(err)
	}
	return other
}

// A member of a claim can write into the claim's region. The claim's own figures
// are then worth nothing, but its programs neither crash nor hang, and get no
// other answers than a program may get; and another claim on the same GPU is not
// touched.
func TestGarbageHarmsTheClaimThatWritesItAlone(t *testing.T) {
	m := newMachine(t, 1)
	const processes, most, piece = 4, 3, 8
	attacked := m.newShare(t, 0, "one", processes*most*piece*mib)
	neighbour := m.container(t)
	s := neighbour.newShare(t, 0, "two", processes*most*piece*mib)

	var members []*client
	for range processes {
		members = append(members, m.client(t, 0))
	}
	// The header gets its garbage too, so only now.
	hostile := m.startClient(t, compile(t, "scribble"), filepath.Join(attacked.dir, "usage"))
	if line, err := hostile.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q %v", line, err)
	}
	answers := make(chan map[string]int)
	for _, c := range members {
		go func() {
			got := map[string]int{}
			defer func() { answers <- got }() // also if it crashed
			for range 300 {
				got[c.do(t, "alloc 0 %d", 8*mib)]++
				got[c.do(t, "alloc 1 4096")]++
				got[strings.Fields(c.do(t, "info"))[0]]++
				c.do(t, "free 0")
				c.do(t, "free 1")
			}
		}()
	}
	_, refused, _ := neighbour.racers(t, processes, "1", "300", strconv.Itoa(most), strconv.Itoa(piece), "0")
	if refused != 0 {
		t.Errorf("the other claim was refused %d times", refused)
	}
	for range members {
		for answer, n := range <-answers {
			if answer != success && answer != outOfMemory {
				t.Errorf("%d calls of the attacked claim answered %s", n, answer)
			}
		}
	}
	hostile.exit(t)
	for _, c := range members {
		c.exit(t)
	}
	s.checkCharged(t, 0)
}

// What cannot be prevented: whoever may write a mapped file may also cut it
// short, and the kernel then ends everybody who touches the rest by SIGBUS. The
// library installs no signal handler, tmpfs has no seals for files that can be
// mounted, and a file that may only be appended to cannot be mapped for writing.
// So a claim can be ended by its own members. Nobody else is, and nobody gets
// more memory by it.
func TestATruncatedRegionHarmsItsOwnClaimAlone(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	neighbour := m.container(t)
	other := neighbour.newShare(t, 0, "two", 16*mib)
	bystander := neighbour.client(t, 0)
	bystander.want(t, success, "alloc 0 %d", 8*mib)
	victim, idle := m.client(t, 0), m.client(t, 0)
	victim.want(t, success, "alloc 0 %d", 8*mib)

	if err := os.Truncate(filepath.Join(s.dir, "usage"), 0); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(victim.in, "alloc 1 %d\n", 8*mib)
	if line, err := victim.out.ReadString('\n'); err == nil {
		t.Errorf("the member of the claim lives, and its call answered %q", line)
	}
	victim.cmd.Wait()
	if status := victim.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGBUS {
		t.Errorf("the member of the claim ended with %v", victim.cmd.ProcessState)
	}
	late := m.idleClient(t)
	checkClosed(t, late, 0)
	late.exit(t)
	if said := late.stderr.String(); !strings.Contains(said, "wrong size") {
		t.Errorf("stderr is %q", said)
	}
	bystander.want(t, success, "alloc 1 %d", 8*mib)
	bystander.want(t, outOfMemory, "alloc 2 1")
	other.checkCharged(t, 16*mib)
	m.checkLedger(t, 0, 16*mib)
	idle.exit(t) // it never looks
}

// The share's files have all their pages, so a full disk is nothing to them.
func TestAFullDiskStopsNobody(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 16*mib)
	script := fmt.Sprintf(`mount -t tmpfs -o size=1m none /mnt && cp -r %[1]s /mnt && mount --bind /mnt/%[1]s %[1]s &&
		! dd if=/dev/zero of=/mnt/rest bs=4k 2>/dev/null && exec %[2]s`, sharesDir, compile(t, "client"))
	for range 2 {
		c := &client{cmd: m.command(t, "sh", "-c", script)}
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		c.start(t)
		for _, command := range []string{"init", "device 0", "alloc 0 16777216"} {
			c.want(t, success, "%s", command)
		}
		c.want(t, outOfMemory, "alloc 1 1")
		c.want(t, figures(0, 16*mib), "info")
		c.exit(t)
	}
}

func TestAsManyProcessesAsThereAreSlots(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 2*(slotCount+8)*mib)
	holders := m.startClient(t, compile(t, "hold"), strconv.Itoa(slotCount))
	if line, err := holders.out.ReadString('\n'); err != nil || line != strconv.Itoa(slotCount)+"\n" {
		t.Fatalf("%q of %d processes got their 2 MiB: %v\n%s", line, slotCount, err, holders.stderr.String())
	}
	s.checkCharged(t, 2*slotCount*mib)
	m.checkLedger(t, 0, 2*slotCount*mib)
	c := m.idleClient(t)
	c.want(t, outOfMemory, "device 0")
	holders.want(t, strconv.Itoa(slotCount-1), "")
	c.want(t, success, "device 0")
	c.want(t, success, "alloc 0 %d", 18*mib)
	c.want(t, outOfMemory, "alloc 1 1")
	m.checkLedger(t, 0, 2*(slotCount+8)*mib)
	c.exit(t)
	if said := c.stderr.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "no free slot") {
		t.Errorf("stderr is %q, want one line about slots", said)
	}
}
