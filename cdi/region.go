package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is what a share's accounting region said at one moment. A container can write anything there: the figures are
// for people, and for the share's own limit, never for another share's safety. Counters begin at 0 with the share and
// may wrap or jump.
type Region struct {
	TAT          uint64 // until when the share's GPU time is spent, CLOCK_MONOTONIC ns
	ThrottleNS   uint64 // waited for GPU time
	Launches     uint64 // of kernels and graphs
	ChargedNS    uint64 // GPU time charged, as the library estimates it, before the agent's correction
	DeniedAllocs uint64
	Slots        []Slot // those that were ever used, slot i at index i; at most 512
}

// Slot is one process's part of a region.
type Slot struct {
	// Live says that a process holds the slot's lock; all else may be what a dead process left. HostPID is that process
	// as this one sees it, 0 if it does not: in another pid namespace, and not below this one's.
	Live    bool
	HostPID int

	Generation uint32 // changes when the slot changes hands
	UsedMiB    uint32 // charged, pending and contexts included
	PendingMiB uint32 // the part of UsedMiB for which the driver's answer is awaited

	PeakBytes    uint64 // the most that was charged at once
	Allocs       uint64 // granted
	Denied       uint64
	PoolBytes    uint64 // the part of UsedMiB that memory pools reserve
	ContextBytes uint64 // the part of UsedMiB that contexts cost
	ThrottledNS  uint64
	Launches     uint64

	// As the process sees itself.
	PID          uint32
	PIDNamespace uint64 // inode
	StartTicks   uint64 // field 22 of /proc/<pid>/stat
}

// UsedBytes is what the slot is charged.
func (s Slot) UsedBytes() uint64 {
	return uint64(s.UsedMiB) << unitShift
}

// ErrRemoved is wrapped by what is asked of a share's file that was removed while it was open: the share was unprepared.
var ErrRemoved = errors.New("the file was removed")

// Usage reads a share's accounting region. It is not safe for concurrent use.
//
// Closing any descriptor of a file drops the record locks that the process has on it. A process that only reads has none.
//
// It maps no more than the slots that were ever used: the kernel maps what is near to what is read too, and a thousand regions
// together would count as a hundred MiB of the reader's memory.
type Usage struct {
	mapping
	slots int // that are mapped
}

// OpenUsage opens the accounting region in a share's directory. It wraps fs.ErrNotExist where there is none.
func OpenUsage(dir string) (*Usage, error) {
	m, err := openMapping(filepath.Join(dir, usageFile), os.O_RDONLY, unix.PROT_READ, usageSize, headerSize)
	if err != nil {
		return nil, err
	}
	return &Usage{mapping: m}, nil
}

// Read says what the region holds now. Each figure is whole, but they are not of one instant. It fails for a file that
// is no region any more, and wraps ErrRemoved for one that was removed.
func (u *Usage) Read() (region Region, err error) {
	if err := u.check(); err != nil {
		return Region{}, err
	}
	// A container may truncate the file at any time, and what is mapped beyond its end faults.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { err = u.faulted(recover(), err) }()
	return u.read()
}

func (u *Usage) read() (Region, error) {
	for i, want := range [...]uint32{usageMagic, abiVersion, headerSize, slotSize, slotCount} {
		if got := u.load32(4 * i); got != want {
			return Region{}, fmt.Errorf("read %s: not an accounting region: word at %d is %#x, want %#x", u.path, 4*i, got, want)
		}
	}
	region := Region{
		TAT:          u.load64(usageTAT),
		ThrottleNS:   u.load64(usageThrottle),
		Launches:     u.load64(usageLaunches),
		ChargedNS:    u.load64(usageCharged),
		DeniedAllocs: u.load64(usageDenied),
		Slots:        make([]Slot, min(u.load32(usageHi), slotCount)),
	}
	if err := u.reach(len(region.Slots)); err != nil {
		return Region{}, err
	}
	for i := range region.Slots {
		var err error
		if region.Slots[i], err = u.slot(i); err != nil {
			return Region{}, err
		}
	}
	return region, nil
}

// reach maps so many slots, if they are not.
func (u *Usage) reach(slots int) error {
	if slots <= u.slots {
		return nil
	}
	page := os.Getpagesize()
	size := min((headerSize+slots*slotSize+page-1)/page*page, usageSize)
	data, err := unix.Mmap(int(u.file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: %w", u.path, err)
	}
	old := u.data
	u.data, u.slots = data, slots
	return unix.Munmap(old)
}

func (u *Usage) slot(i int) (Slot, error) {
	at := headerSize + i*slotSize
	charge := u.load64(at + slotCharge)
	slot := Slot{
		Generation:   uint32(charge >> generationShift),
		UsedMiB:      uint32(charge & fieldMask),
		PendingMiB:   uint32(charge >> pendingShift & fieldMask),
		PeakBytes:    u.load64(at + slotPeak),
		Allocs:       u.load64(at + slotAllocs),
		Denied:       u.load64(at + slotDenied),
		PoolBytes:    u.load64(at + slotPools),
		ContextBytes: u.load64(at + slotContext),
		ThrottledNS:  u.load64(at + slotThrottle),
		Launches:     u.load64(at + slotLaunches),
		PID:          u.load32(at + slotPID),
		PIDNamespace: u.load64(at + slotPIDNamespace),
		StartTicks:   u.load64(at + slotStart),
	}
	var err error
	slot.HostPID, slot.Live, err = owner(u.file, i, 1)
	return slot, err
}

// owner finds a process that owns one of n slots from the first. pid is 0 if it cannot be told.
func owner(file *os.File, first, n int) (pid int, live bool, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: lockBase + int64(first), Len: int64(n)}
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, false, fmt.Errorf("look for the owner of %d slots from %d of %s: %w", n, first, file.Name(), err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, false, nil
	}
	return max(int(lock.Pid), 0), true, nil
}

// userOf finds a process that owns any slot of a share's region, whatever stands there.
func userOf(dir string) (pid int, used bool, err error) {
	file, err := os.OpenFile(filepath.Join(dir, usageFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer file.Close()
	return owner(file, 0, slotCount)
}

// mapping is one of a share's files in memory.
type mapping struct {
	path string
	file *os.File
	size int
	data []byte
}

// openMapping maps the first bytes of a file that must be of some size.
func openMapping(path string, flags, protection, size, mapped int) (mapping, error) {
	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return mapping{}, err
	}
	m := mapping{path: path, file: file, size: size}
	err = m.check()
	if err == nil {
		if m.data, err = unix.Mmap(int(file.Fd()), 0, mapped, protection, unix.MAP_SHARED); err != nil {
			err = fmt.Errorf("map %s: %w", path, err)
		}
	}
	if err != nil {
		_ = file.Close()
		return mapping{}, err
	}
	return m, nil
}

// check says whether the file is still what was opened, at its place and of its size.
func (m *mapping) check() error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(m.file.Fd()), &stat); err != nil {
		return fmt.Errorf("look at %s: %w", m.path, err)
	}
	switch {
	case stat.Nlink == 0:
		return fmt.Errorf("%s: %w", m.path, ErrRemoved)
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s is not a file", m.path)
	case stat.Size != int64(m.size):
		return fmt.Errorf("%s has %d bytes, want %d", m.path, stat.Size, m.size)
	}
	return nil
}

// faulted turns the panic of an access beyond the file's end into an error, and passes on any other.
func (m *mapping) faulted(panicked any, err error) error {
	if panicked == nil {
		return err
	}
	fault, ok := panicked.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(panicked)
	}
	return fmt.Errorf("%s was truncated while it was used: %w", m.path, fault)
}

// Close unmaps and closes the file.
func (m *mapping) Close() error {
	return errors.Join(unix.Munmap(m.data), m.file.Close())
}

// The words of a mapping. Another process may change them at any time, so each is loaded and stored as a whole.

func (m *mapping) word32(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&m.data[offset])) }
func (m *mapping) word64(offset int) *uint64 { return (*uint64)(unsafe.Pointer(&m.data[offset])) }

func (m *mapping) load32(offset int) uint32 { return atomic.LoadUint32(m.word32(offset)) }
func (m *mapping) load64(offset int) uint64 { return atomic.LoadUint64(m.word64(offset)) }
