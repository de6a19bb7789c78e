package cdi

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Page is what the node tells a share's preload library.
type Page struct {
	TimeNS             uint64 // CLOCK_MONOTONIC when this was measured; 0: now
	CorrectionPermille uint32 // by which the library multiplies what it estimates as GPU time; 0: not measured
	BusyPermille       uint32 // of the GPU's time, used by the share lately
	ActualBytes        uint64 // what NVML says that the share's processes hold
	CorePermille       uint32 // of the GPU's time that the share may use now; 0: as in quota

	// Slots are what is known of the process in each slot.
	Slots [slotCount]SlotCost
}

// SlotCost is what a process holds of GPU memory beyond what its allocations are charged: contexts, modules.
type SlotCost struct {
	OverheadMiB uint32 // 0: not measured
	Generation  uint32 // of the process's slot; the low 8 bits are told
}

// Agent writes a share's agent page. It is not safe for concurrent use; nobody else writes the page.
type Agent struct {
	mapping
}

// OpenAgent opens the agent page in a share's directory. It wraps fs.ErrNotExist where there is none.
func OpenAgent(dir string) (*Agent, error) {
	m, err := openMapping(filepath.Join(dir, agentFile), os.O_RDWR, unix.PROT_READ|unix.PROT_WRITE, agentSize, agentSize)
	if err != nil {
		return nil, err
	}
	a := &Agent{m}
	if magic, abi := a.load32(0), a.load32(4); magic != agentMagic || abi != abiVersion {
		_ = a.Close()
		return nil, fmt.Errorf("%s is not an agent page: magic %#x, ABI %d, want %#x, %d", a.path, magic, abi, agentMagic, abiVersion)
	}
	return a, nil
}

// ContextMiB is what a process's first context is charged until it was measured, as the share was prepared. Write leaves
// it alone.
func (a *Agent) ContextMiB() uint32 {
	return a.load32(agentContext)
}

// Write tells the library what the page says. Readers take a page whose sequence number is even
// and the same before and after. One that is odd when Write begins was left by a writer that died in between: nothing
// of the old page is needed, so the number just goes on. Write wraps ErrRemoved for a page that was removed.
func (a *Agent) Write(page Page) (err error) {
	if err := a.check(); err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { err = a.faulted(recover(), err) }()
	writing := a.load64(agentSeq) | 1
	a.store64(agentSeq, writing)
	a.fill(page)
	a.store64(agentSeq, writing+1)
	return nil
}

// fill stores all of the page; the caller keeps the sequence.
func (a *Agent) fill(page Page) {
	if page.TimeNS == 0 {
		page.TimeNS = monotonicNanoseconds()
	}
	a.store64(agentTime, page.TimeNS)
	a.store32(agentCorrection, page.CorrectionPermille)
	a.store32(agentBusy, page.BusyPermille)
	a.store64(agentActual, page.ActualBytes)
	a.store32(agentCores, page.CorePermille)
	var generations [slotCount]byte
	for i, slot := range page.Slots {
		a.store32(agentOverhead+4*i, slot.OverheadMiB)
		generations[i] = byte(slot.Generation)
	}
	for i := 0; i < slotCount; i += 8 {
		a.store64(agentGeneration+i, binary.NativeEndian.Uint64(generations[i:]))
	}
}

func (m *mapping) store32(offset int, value uint32) { atomic.StoreUint32(m.word32(offset), value) }
func (m *mapping) store64(offset int, value uint64) { atomic.StoreUint64(m.word64(offset), value) }
