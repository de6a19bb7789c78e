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
