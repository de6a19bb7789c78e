package preload_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAShareThatCannotBeTrustedCloses(t *testing.T) {
	replaceLine := func(old, new string) func(testing.TB, share) {
		return func(t testing.TB, s share) {
			s.write(t, "quota", []byte(strings.Replace(quotaText(uuid(0), 64*mib), old, new, 1)))
		}
	}
	header := func(offset int, value uint32) func(testing.TB, share) {
		return func(t testing.TB, s share) {
			region := usageBytes()
			binary.NativeEndian.PutUint32(region[offset:], value)
			s.write(t, "usage", region)
		}
	}
	page := func(offset int, value uint32) func(testing.TB, share) {
		return func(t testing.TB, s share) {
			agent := agentBytes()
			binary.NativeEndian.PutUint32(agent[offset:], value)
			s.write(t, "agent", agent)
		}
	}
	remove := func(name string) func(testing.TB, share) {
		return func(t testing.TB, s share) {
			if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	rename := func(to string) func(testing.TB, share) {
		return func(t testing.TB, s share) {
			if err := os.Rename(s.dir, filepath.Join(filepath.Dir(s.dir), to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name string
		ruin func(testing.TB, share)
		all  bool // every GPU is closed, not only the share's
		says string
	}{
		{"no quota", remove("quota"), false, "quota cannot be opened"},
		{"quota is a directory", func(t testing.TB, s share) {
			remove("quota")(t, s)
			os.Mkdir(filepath.Join(s.dir, "quota"), 0o755)
		}, false, "quota cannot be read"},
		{"empty quota", replaceLine(quotaText(uuid(0), 64*mib), ""), false, "quota is empty"},
		{"version 2", replaceLine("version 1", "version 2"), false, "unknown value of version"},
		{"no version", replaceLine("version 1\n", ""), false, "no version"},
		{"version 2 with lines of its own", replaceLine("version 1\n", "version 2\n{\n"), false, "unknown value of version"},
		{"cut in a line", replaceLine("core_percent 0\ncore_policy Fixed\npriority 0\n", "core_per"), false, "cut short"},
		{"cut between lines", replaceLine("core_policy Fixed\npriority 0\n", ""), false, "no core_policy"},
		{"no memory", replaceLine("memory_bytes 67108864\n", ""), false, "no memory_bytes"},
		{"memory is no number", replaceLine("67108864", "64Mi"), false, "unknown value of memory_bytes"},
		{"memory is too much for a number", replaceLine("67108864", "99999999999999999999"), false, "unknown value of memory_bytes"},
		{"negative memory", replaceLine("67108864", "-1"), false, "unknown value of memory_bytes"},
		{"memory twice", replaceLine("core_percent 0", "core_percent 0\nmemory_bytes 1"), false, "memory_bytes twice"},
		{"101 percent", replaceLine("core_percent 0", "core_percent 101"), false, "unknown value of core_percent"},
		{"unknown policy", replaceLine("Fixed", "fixed"), false, "unknown value of core_policy"},
		{"garbage", replaceLine("priority 0", "\x00\xff"), false, "not a key and a value"},
		{"a megabyte", replaceLine("priority 0", strings.Repeat("a ", mib/2)), false, "too long"},
		{"no usage", remove("usage"), false, "usage cannot be opened"},
		{"short usage", func(t testing.TB, s share) { s.write(t, "usage", usageBytes()[:4096]) }, false, "wrong size"},
		{"empty usage", func(t testing.TB, s share) { s.write(t, "usage", nil) }, false, "wrong size"},
		{"garbage magic", header(0, 0x6b6f6f6c), false, "not an accounting region"},
		{"another version of usage", header(4, 2), false, "another version"},
		{"another slot size", header(12, 128), false, "unknown layout"},
		{"more slots", header(16, 1024), false, "unknown layout"},
		{"no agent", remove("agent"), false, "agent cannot be opened"},
		{"agent is a directory", func(t testing.TB, s share) {
			remove("agent")(t, s)
			os.Mkdir(filepath.Join(s.dir, "agent"), 0o755)
		}, false, "agent is not a file"},
		{"empty agent", func(t testing.TB, s share) { s.write(t, "agent", nil) }, false, "wrong size"},
		{"agent cut short", func(t testing.TB, s share) { s.write(t, "agent", agentBytes()[:2112]) }, false, "wrong size"},
		{"agent of zeros", page(0, 0), false, "not an agent page"},
		{"usage's magic in agent", page(0, usageMagic), false, "not an agent page"},
		{"another version of agent", page(4, 2), false, "another version"},
		{"quota of another GPU", replaceLine(uuid(0), uuid(1)), true, "of another GPU"},
		{"name without a share id", rename(uuid(0)), true, "not the name of a share"},
		{"name without a UUID", rename("GPU-1.one"), true, "not the name of a share"},
		{"name that is too long", rename(uuid(0) + "." + strings.Repeat("x", 200)), true, "not the name of a share"},
		{"no share at all", func(t testing.TB, s share) { os.RemoveAll(s.dir) }, true, "has no share"},
		{"no directory", func(t testing.TB, s share) { os.RemoveAll(filepath.Dir(s.dir)) }, true, "cannot be opened"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 2)
			test.ruin(t, m.newShare(t, 0, "one", 64*mib))
			c := m.idleClient(t)
			checkClosed(t, c, 0)
			if test.all {
				checkClosed(t, c, 1)
			} else {
				c.want(t, success, "device 1")
				c.want(t, success, "alloc 0 %d", 32*mib)
			}
			c.exit(t)
			said := c.stderr.String()
			if strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "aliquot: ") || !strings.Contains(said, test.says) {
				t.Errorf("stderr is %q, want one line with %q", said, test.says)
			}
		})
	}
}

// checkClosed expects that a card gives nothing: no context either, and so
// nothing that needs one.
func checkClosed(t testing.TB, c *client, card int) {
	t.Helper()
	for _, call := range []string{"primary %d", "context 0 %d", "context-v3 0 %d", "context-v4 0 %d", "green 0 %d", "create 0 2097152 1 %d"} {
		c.want(t, outOfMemory, call, card)
	}
	if answer := strings.Fields(c.do(t, "nvml %d", card)); answer[0] != success || answer[3] != "0" || answer[6] != "0" {
		t.Errorf("NVML answers %q, want nothing free", answer)
	}
}

func TestAShareWithoutMemoryGivesNone(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 0)
	c := m.client(t, 0) // contexts cost nothing here
	c.want(t, success, "pool 0 0")
	for _, call := range []string{"alloc 0 1", "alloc 0 4194304", "managed 0 4096", "pitch 0 10 10",
		"async 0 4096", "from-pool 0 4096 0", "create 0 2097152 1 0"} {
		c.want(t, outOfMemory, "%s", call)
	}
	c.want(t, figures(0, 0), "info")
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}

func TestOneBadShareOfAGPUClosesItForTheOthers(t *testing.T) {
	for _, bad := range []string{"a", "z"} { // read before the good one, and after
		m := newMachine(t, 1)
		m.newShare(t, 0, "good", 64*mib)
		m.newShare(t, 0, bad, 64*mib).write(t, "quota", []byte("version 3\n"))
		checkClosed(t, m.idleClient(t), 0)
	}
}

func TestUnknownKeysOfVersion1AreIgnored(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 0)
	s.write(t, "quota", []byte("colour blue and green\n"+quotaText(uuid(0), 8*mib)+"later 1\n"))
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 8*mib)
	c.want(t, outOfMemory, "alloc 1 1")
}

func TestAReadOnlyUsageFileCloses(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	usage := filepath.Join(s.dir, "usage")
	script := fmt.Sprintf("mount --bind %[1]s %[1]s && mount -o remount,bind,ro %[1]s && exec %[2]s", usage, compile(t, "client"))
	c := &client{cmd: m.command(t, "sh", "-c", script)}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c.start(t)
	c.want(t, success, "init")
	checkClosed(t, c, 0)
	c.exit(t)
	if !strings.Contains(c.stderr.String(), "opened for writing") {
		t.Errorf("stderr is %q", c.stderr.String())
	}
}

func TestWithoutAFreeSlotNothingIsAllocated(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	unlock := s.lock(t, lockBase, slotCount)
	c := m.idleClient(t)
	c.want(t, outOfMemory, "device 0") // though a context costs nothing
	c.want(t, outOfMemory, "create 0 %d 1 0", 2*mib)
	unlock()
	c.want(t, success, "device 0")
	c.want(t, success, "alloc 0 %d", 2*mib)
	c.exit(t)
	if said := c.stderr.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "no free slot") {
		t.Errorf("stderr is %q, want one line about slots", said)
	}
}

// lock takes bytes of the usage file as another process would. It is a lock of
// the open file, so that reading the region meanwhile does not drop it.
func (s share) lock(t testing.TB, start, length int64) (unlock func()) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(s.dir, "usage"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: start, Len: length}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	return func() { file.Close() }
}

func TestGarbageInTheSlotsOfTheDeadIsCleared(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	region := append(usageBytes()[:headerSize], bytes.Repeat([]byte{0xff}, usageSize-headerSize)...)
	binary.NativeEndian.PutUint32(region[20:], 0xffffffff) // hi
	binary.NativeEndian.PutUint64(region[40:], 1<<63)      // the gate
	s.write(t, "usage", region)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 64*mib)
	c.want(t, outOfMemory, "alloc 1 1")
	s.checkCharged(t, 64*mib)
}
