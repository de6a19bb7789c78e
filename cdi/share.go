package cdi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// The files of a share, as hosts and containers call them.
const (
	quotaFile = "quota" // text, what the share may use
	agentFile = "agent" // what the node tells the preload library
	usageFile = "usage" // the accounting region, the only file that a container can write
)

// The layouts of agent and usage are defined in preload/abi.h; a test compares these constants with it.
const (
	quotaVersion = 1
	quotaFormat  = "version %d\ngpu %s\nmemory_bytes %d\ncore_percent %d\ncore_policy %s\npriority %d\n"

	abiVersion = 1
	usageMagic = 0x55514c41 // "ALQU"
	agentMagic = 0x41514c41 // "ALQA"

	headerSize = 4096
	slotSize   = 256
	slotCount  = 512
	usageSize  = headerSize + slotCount*slotSize
	agentSize  = 4096

	lockBase = 1 << 30 // of the usage file; the owner of slot i holds a record lock on byte lockBase+i

	unitShift       = 20 // a charge word counts MiB
	fieldMask       = 1<<22 - 1
	pendingShift    = 22
	generationShift = 44
)

// Where struct aq_usage_header has its fields.
const (
	usageHi       = 20
	usageTAT      = 64
	usageDenied   = 128
	usageThrottle = 136
	usageLaunches = 144
	usageCharged  = 152
)

// Where struct aq_usage_slot has its fields.
const (
	slotCharge       = 0
	slotPeak         = 8
	slotAllocs       = 16
	slotDenied       = 24
	slotPools        = 32
	slotContext      = 40
	slotThrottle     = 64
	slotLaunches     = 72
	slotPID          = 128
	slotPIDNamespace = 136
	slotStart        = 144
)

// Where struct aq_agent has its fields.
const (
	agentSeq        = 8
	agentTime       = 16
	agentCorrection = 24
	agentBusy       = 28
	agentActual     = 32
	agentCores      = 40
	agentContext    = 44
	agentOverhead   = 64
	agentGeneration = 2112
)

// text is the quota file's content: a key and its value a line, each key once.
func (q Quota) text() []byte {
	return fmt.Appendf(nil, quotaFormat,
		quotaVersion, q.GPU, q.MemoryBytes, q.CorePercent, q.CorePolicy, q.Priority)
}

// writeShare makes a share's directory and what is missing in it, and removes what was left half-written. A usage or agent file that is there stays: a running
// container may have it mounted, and a second one beside it would double the share.
func writeShare(dir string, quota Quota) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := create(filepath.Join(dir, usageFile), usageHeader(), usageSize, 0o666); err != nil {
		return err
	}
	if err := create(filepath.Join(dir, agentFile), quota.agentHeader(), agentSize, 0o644); err != nil {
		return err
	}
	if err := writeQuota(filepath.Join(dir, quotaFile), quota.text()); err != nil {
		return err
	}
	return removeOthers(dir, quotaFile, agentFile, usageFile)
}

// writeQuota writes the quota unless it is there already as it should be, and reads it back: no pod may start with
// another limit than the one that was granted.
func writeQuota(path string, text []byte) error {
	if present, err := os.ReadFile(path); err == nil && bytes.Equal(present, text) {
		return nil
	}
	if err := renameio.WriteFile(path, text, 0o644, renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return err
	}
	written, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(written, text) {
		return fmt.Errorf("%s reads back other than it was written", path)
	}
	return nil
}

// create makes a file of the given size that begins with header, whole or not at all, unless there is one. It writes all
// of it, zeros too: a hole would take its page only when a container writes there, and kill that container if the tmpfs were
// full by then.
func create(path string, header []byte, size int, mode os.FileMode) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content := make([]byte, size)
	copy(content, header)
	return renameio.WriteFile(path, content, mode, renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(path)))
}

// usageHeader is struct aq_usage_header as far as the node fills it.
func usageHeader() []byte {
	h := make([]byte, 40)
	order := binary.NativeEndian
	order.PutUint32(h[0:], usageMagic)
	order.PutUint32(h[4:], abiVersion)
	order.PutUint32(h[8:], headerSize)
	order.PutUint32(h[12:], slotSize)
	order.PutUint32(h[16:], slotCount)
	order.PutUint64(h[24:], bootIDHash())
	order.PutUint64(h[32:], monotonicNanoseconds())
	return h
}

// agentHeader is struct aq_agent before the agent's first measurement.
func (q Quota) agentHeader() []byte {
	h := make([]byte, agentContext+4)
	order := binary.NativeEndian
	order.PutUint32(h[0:], agentMagic)
	order.PutUint32(h[4:], abiVersion)
	order.PutUint32(h[agentCores:], q.CorePermille)
	order.PutUint32(h[agentContext:], q.ContextMiB)
	return h
}

// bootIDHash tells files of this boot from those of an earlier one, 0 where the kernel does not say.
func bootIDHash() uint64 {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	h.Write(bytes.TrimSpace(id))
	return h.Sum64()
}

func monotonicNanoseconds() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return uint64(now.Nano())
}
