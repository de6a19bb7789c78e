package preload_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Constants of abi.h, which TestABI holds to the golden file.
const (
	usageMagic   = 0x55514c41
	agentMagic   = 0x41514c41
	agentSize    = 4096
	abiVersion   = 1
	headerSize   = 4096
	slotSize     = 256
	slotCount    = 512
	usageSize    = headerSize + slotSize*slotCount
	lockBase     = 1 << 30
	unitShift    = 20
	fieldBits    = 22
	deniedOffset = 128

	generationShift      = 44
	contextOffset        = 40 // in a slot
	agentSeqOffset       = 8
	contextMiBOffset     = 44 // in the agent page, as those below
	slotOverheadOffset   = 64
	slotGenerationOffset = 2112
)

const mib = 1 << 20

// share is one share's directory.
type share struct {
	dir string
}

// newShare gives the container a share of a card, as the plugin would.
func (m *machine) newShare(t testing.TB, card int, id string, memory uint64) share {
	t.Helper()
	s := share{filepath.Join(m.dir, sharesDir, uuid(card)+"."+id)}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.write(t, "quota", []byte(quotaText(uuid(card), memory)))
	s.write(t, "agent", agentBytes())
	s.write(t, "usage", usageBytes())
	return s
}

func quotaText(gpu string, memory uint64) string {
	return fmt.Sprintf("version 1\ngpu %s\nmemory_bytes %d\ncore_percent 0\ncore_policy Fixed\npriority 0\n", gpu, memory)
}

// usageBytes is a new accounting region.
func usageBytes() []byte {
	region := make([]byte, usageSize)
	for i, value := range []uint32{usageMagic, abiVersion, headerSize, slotSize, slotCount} {
		binary.NativeEndian.PutUint32(region[4*i:], value)
	}
	return region
}

// agentBytes is an agent page before the first measurement.
func agentBytes() []byte {
	page := make([]byte, agentSize)
	binary.NativeEndian.PutUint32(page[0:], agentMagic)
	binary.NativeEndian.PutUint32(page[4:], abiVersion)
	return page
}

func (s share) write(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// setAgent writes 32-bit fields of the agent page in place, as the node's agent
// does: programs have it mapped.
func (s share) setAgent(t testing.TB, fields map[int64]uint32) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(s.dir, "agent"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write := func(offset int64, value any) {
		data, err := binary.Append(nil, binary.NativeEndian, value)
		if err == nil {
			_, err = file.WriteAt(data, offset)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var seq [8]byte
	if _, err := file.ReadAt(seq[:], agentSeqOffset); err != nil {
		t.Fatal(err)
	}
	last := binary.NativeEndian.Uint64(seq[:])
	write(agentSeqOffset, last+1)
	for offset, value := range fields {
		write(offset, value)
	}
	write(agentSeqOffset, last+2)
}

// setOverhead has the agent say what the process in a slot holds beyond its
// allocations; of is the generation of the process that was measured.
func (s share) setOverhead(t testing.TB, slot int, of uint64, mebibytes uint32) {
	t.Helper()
	data := readFile(t, filepath.Join(s.dir, "agent"))
	offset := int64(slotGenerationOffset + slot/4*4)
	generations := []byte(data[offset : offset+4])
	generations[slot%4] = byte(of)
	s.setAgent(t, map[int64]uint32{
		int64(slotOverheadOffset + 4*slot): mebibytes,
		offset:                             binary.NativeEndian.Uint32(generations),
	})
}

// generation is that of the process which has a slot.
func (s share) generation(t testing.TB, slot int) uint64 {
	t.Helper()
	return binary.NativeEndian.Uint64(s.usage(t)[headerSize+slot*slotSize:]) >> generationShift
}

// contexts is what the process in a slot says that its contexts cost, in bytes.
func (s share) contexts(t testing.TB, slot int) uint64 {
	t.Helper()
	return binary.NativeEndian.Uint64(s.usage(t)[headerSize+slot*slotSize+contextOffset:])
}

func (s share) usage(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, "usage"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// charged adds up all slots, in bytes; pending is the part that waits for the
// driver.
func (s share) charged(t testing.TB) (used, pending uint64) {
	t.Helper()
	region := s.usage(t)
	const mask = 1<<fieldBits - 1
	for i := range slotCount {
		word := binary.NativeEndian.Uint64(region[headerSize+i*slotSize:])
		used += word & mask << unitShift
		pending += word >> fieldBits & mask << unitShift
	}
	return used, pending
}

// checkCharged compares what the region says with what it should.
func (s share) checkCharged(t testing.TB, want uint64) {
	t.Helper()
	used, pending := s.charged(t)
	if used != want || pending != 0 {
		t.Errorf("the region has %d MiB charged and %d pending, want %d and 0", used>>20, pending>>20, want>>20)
	}
}

// setAgentTime says when the page was written, ns of the monotonic clock.
func (s share) setAgentTime(t testing.TB, ns uint64) {
	t.Helper()
	s.setAgent(t, map[int64]uint32{agentTimeOffset: uint32(ns), agentTimeOffset + 4: uint32(ns >> 32)})
}
