package cdi

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// shareFiles makes the files of one share and returns their directory.
func shareFiles(t testing.TB, quota Quota) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "share")
	if err := writeShare(dir, quota); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openUsage(t testing.TB, dir string) *Usage {
	t.Helper()
	u, err := OpenUsage(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.Close() })
	return u
}

// poke writes a number where C has it, as a container would.
func poke(t testing.TB, path string, at int, size int, value uint64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], value)
	if _, err := file.WriteAt(word[:size], int64(at)); err != nil { // the machines that this runs on are little-endian
		t.Fatal(err)
	}
}

func offset(t *testing.T, c map[string]string, field string) int {
	t.Helper()
	at, err := strconv.Atoi(c[field])
	if err != nil {
		t.Fatalf("%s is not in abi.golden: %v", field, err)
	}
	return at
}

func TestRegionIsReadWhereTheLibraryWritesIt(t *testing.T) {
	c, dir := abi(t), shareFiles(t, Quota{})
	path := filepath.Join(dir, usageFile)
	for i, field := range []string{"tat", "throttle_ns", "launches", "charged_ns", "denied_allocs"} {
		poke(t, path, offset(t, c, "aq_usage_header."+field), 8, uint64(i+1)<<40)
	}
	poke(t, path, offset(t, c, "aq_usage_header.hi"), 4, 3)
	slot := offset(t, c, "AQ_HEADER_SIZE") + 2*offset(t, c, "AQ_SLOT_SIZE")
	poke(t, path, slot+offset(t, c, "aq_usage_slot.charge"), 8, 0xabcde<<44|5<<22|77)
	for i, field := range []string{"peak", "allocs", "denied", "pools", "ctx", "throttled_ns", "launches", "pidns_ino", "start_ticks"} {
		poke(t, path, slot+offset(t, c, "aq_usage_slot."+field), 8, uint64(i+1)<<41)
	}
	poke(t, path, slot+offset(t, c, "aq_usage_slot.pid"), 4, 4711)
	got, err := openUsage(t, dir).Read()
	if err != nil {
		t.Fatal(err)
	}
	want := Region{
		TAT: 1 << 40, ThrottleNS: 2 << 40, Launches: 3 << 40, ChargedNS: 4 << 40, DeniedAllocs: 5 << 40,
		Slots: []Slot{{}, {}, {
			Generation: 0xabcde, UsedMiB: 77, PendingMiB: 5,
			PeakBytes: 1 << 41, Allocs: 2 << 41, Denied: 3 << 41, PoolBytes: 4 << 41, ContextBytes: 5 << 41, ThrottledNS: 6 << 41, Launches: 7 << 41,
			PID: 4711, PIDNamespace: 8 << 41, StartTicks: 9 << 41,
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("region (-want +got):\n%s", diff)
	}
	if got.Slots[2].UsedBytes() != 77<<20 {
		t.Errorf("used are %d bytes", got.Slots[2].UsedBytes())
	}
}

// holderVariable makes TestHoldSlots a process that owns slots.
const holderVariable = "ALIQUOT_TEST_HOLD"

// TestHoldSlots locks slots 0 and 2 of a region, says so, and ends with its input.
func TestHoldSlots(t *testing.T) {
	dir := os.Getenv(holderVariable)
	if dir == "" {
		t.Skip("it is the other process of TestLivenessIsTheLock")
	}
	fd, err := unix.Open(filepath.Join(dir, usageFile), unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int64{0, 2} {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: lockBase + i, Len: 1}
		if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lock); err != nil {
			t.Fatal(err)
		}
	}
	os.Stderr.WriteString("locked\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestLivenessIsTheLock(t *testing.T) {
	c, dir := abi(t), shareFiles(t, Quota{})
	poke(t, filepath.Join(dir, usageFile), offset(t, c, "aq_usage_header.hi"), 4, 4)
	usage := openUsage(t, dir)
	owners := func() []int {
		t.Helper()
		region, err := usage.Read()
		if err != nil {
			t.Fatal(err)
		}
		var pids []int
		for _, slot := range region.Slots {
			if slot.Live != (slot.HostPID != 0) {
				t.Errorf("a slot is live: %t, its owner %d", slot.Live, slot.HostPID)
			}
			pids = append(pids, slot.HostPID)
		}
		return pids
	}
	if got := owners(); !cmp.Equal(got, []int{0, 0, 0, 0}) {
		t.Errorf("before: owners are %v", got)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHoldSlots$")
	cmd.Env = append(os.Environ(), holderVariable+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stderr).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	pid := cmd.Process.Pid
	if got := owners(); !cmp.Equal(got, []int{pid, 0, pid, 0}) {
		t.Errorf("while process %d holds slots 0 and 2: owners are %v", pid, got)
	}
	// Another reader that comes and goes takes nobody's lock away.
	if err := openUsage(t, dir).file.Close(); err != nil {
		t.Fatal(err)
	}
	if got := owners(); !cmp.Equal(got, []int{pid, 0, pid, 0}) {
		t.Errorf("after another reader left: owners are %v", got)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if got := owners(); !cmp.Equal(got, []int{0, 0, 0, 0}) {
		t.Errorf("after it was killed: owners are %v", got)
	}
}

func TestBadRegionsAreRefused(t *testing.T) {
	truncate := func(size int64) func(string) error {
		return func(path string) error { return os.Truncate(path, size) }
	}
	for name, tc := range map[string]struct {
		damage  func(path string) error
		wantErr string
	}{
		"short":      {truncate(usageSize - 1), "has 135167 bytes, want 135168"},
		"empty":      {truncate(0), "has 0 bytes"},
		"long":       {truncate(usageSize + 1), "has 135169 bytes"},
		"zeros":      {func(path string) error { return os.WriteFile(path, make([]byte, usageSize), 0o666) }, "not an accounting region"},
		"other size": {func(path string) error { poke(t, path, 8, 4, 64); return nil }, "word at 8 is 0x40, want 0x1000"},
		"removed":    {os.Remove, "the file was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shareFiles(t, Quota{})
			usage := openUsage(t, dir)
			if err := tc.damage(filepath.Join(dir, usageFile)); err != nil {
				t.Fatal(err)
			}
			if _, err := usage.Read(); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got error %v, want %q", err, tc.wantErr)
			}
			if _, err := usage.Read(); errors.Is(err, ErrRemoved) != (name == "removed") {
				t.Errorf("got error %v; is it removed?", err)
			}
		})
	}
}

func TestWhatIsNoFileIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, usageFile)
	if _, err := OpenUsage(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: got error %v", err)
	}
	if err := os.Symlink(filepath.Join(shareFiles(t, Quota{}), usageFile), path); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenUsage(dir); !errors.Is(err, unix.ELOOP) {
		t.Errorf("symbolic link: got error %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenUsage(dir); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("directory: got error %v", err)
	}
}

// A container may truncate its region between the reader's look at the size and its reading.
func TestTruncationWhileReadingIsAnError(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's own C code would take the fault")
	}
	dir := shareFiles(t, Quota{})
	usage := openUsage(t, dir)
	if err := os.Truncate(usage.path, 0); err != nil {
		t.Fatal(err)
	}
	usage.size = 0 // as if it had been found right
	if _, err := usage.Read(); err == nil || !strings.Contains(err.Error(), "was truncated while it was used") {
		t.Errorf("got error %v", err)
	}
}

// FuzzRegion reads regions that a container wrote.
func FuzzRegion(f *testing.F) {
	whole := padded(usageHeader(), usageSize)
	f.Add(whole[:200], uint32(0), uint64(0))
	f.Add(whole[:40], uint32(1<<31), ^uint64(0))
	f.Add(whole[:4], uint32(513), uint64(1)<<43)
	f.Add([]byte("garbage"), uint32(slotCount), uint64(0))
	dir := shareFiles(f, Quota{})
	path := filepath.Join(dir, usageFile)
	usage := openUsage(f, dir)
	f.Fuzz(func(t *testing.T, beginning []byte, hi uint32, charge uint64) {
		content := padded(usageHeader(), usageSize)
		binary.NativeEndian.PutUint32(content[usageHi:], hi)
		for i := range slotCount {
			binary.NativeEndian.PutUint64(content[headerSize+i*slotSize:], charge)
		}
		copy(content, beginning)
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		region, err := usage.Read()
		if err != nil {
			return
		}
		if len(region.Slots) > slotCount {
			t.Errorf("%d slots", len(region.Slots))
		}
		for i, slot := range region.Slots {
			if slot.Live || slot.HostPID != 0 {
				t.Errorf("slot %d belongs to %d, but nobody holds a lock", i, slot.HostPID)
			}
			if slot.UsedMiB > fieldMask || slot.PendingMiB > fieldMask || slot.Generation > 1<<20-1 {
				t.Errorf("slot %d: %+v", i, slot)
			}
		}
	})
}

// What a container writes to its region, or does to the file, does not hide its processes.
func TestUserOfAShare(t *testing.T) {
	layout := layoutIn(t.TempDir())
	store, c := newStore(t, layout), claimOf(share("gpu", "s1", "GPU-0", 1<<30), share("more", "s2", "GPU-1", 1<<30))
	if err := store.WriteShares(c); err != nil {
		t.Fatal(err)
	}
	if pid, used, err := store.User(c.UID); used || err != nil {
		t.Errorf("before: used %t by %d, error %v", used, pid, err)
	}
	path := filepath.Join(layout.ShareDir(c.UID, c.Devices[len(c.Devices)-1]), usageFile)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	// A lock of the open file is another's to those who look for locks of processes.
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: lockBase + slotCount - 1, Len: 1}); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{usageSize, 0} {
		if err := file.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if _, used, err := store.User(c.UID); !used || err != nil {
			t.Errorf("of %d bytes: used %t, error %v", size, used, err)
		}
	}
	_ = file.Close()
	if _, used, err := store.User(c.UID); used || err != nil {
		t.Errorf("after: used %t, error %v", used, err)
	}
	if _, used, err := store.User("nobody"); used || err != nil {
		t.Errorf("of a claim without shares: used %t, error %v", used, err)
	}
	if _, _, err := store.User("../up"); err == nil {
		t.Error("a path is taken for a claim")
	}
}

// A reader of a thousand regions has no more of them in memory than their processes use.
func TestOnlyUsedSlotsAreMapped(t *testing.T) {
	dir := shareFiles(t, Quota{})
	u, path := openUsage(t, dir), filepath.Join(dir, usageFile)
	for _, slots := range []int{0, 1, 17, 3, slotCount} { // it goes back if the container writes that, and is mapped still
		if slots > 0 {
			poke(t, path, headerSize+(slots-1)*slotSize+slotPeak, 8, uint64(slots))
		}
		poke(t, path, usageHi, 4, uint64(slots))
		region, err := u.Read()
		if err != nil || len(region.Slots) != slots || slots > 0 && region.Slots[slots-1].PeakBytes != uint64(slots) {
			t.Errorf("%d slots in use: read %d, error %v", slots, len(region.Slots), err)
		}
		if want := headerSize + 32*slotSize; slots < 32 && len(u.data) > want {
			t.Errorf("%d slots in use: %d bytes are mapped, want at most %d", slots, len(u.data), want)
		}
	}
}
