package cdi

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// abi reads what a C program printed of preload/abi.h, the only definition of the files' layouts.
func abi(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("preload", "testdata", "abi.golden"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		values[name] = value
	}
	return values
}

func TestConstantsAreThoseOfTheLibrary(t *testing.T) {
	c := abi(t)
	for name, ours := range map[string]uint64{
		"AQ_QUOTA_VERSION": quotaVersion, "AQ_USAGE_MAGIC": usageMagic, "AQ_AGENT_MAGIC": agentMagic, "AQ_ABI": abiVersion,
		"AQ_HEADER_SIZE": headerSize, "AQ_SLOT_SIZE": slotSize, "AQ_SLOT_COUNT": slotCount,
		"AQ_USAGE_SIZE": usageSize, "AQ_AGENT_SIZE": agentSize, "sizeof(aq_usage)": usageSize, "sizeof(aq_agent)": agentSize,
		"sizeof(aq_usage_header)": headerSize, "sizeof(aq_usage_slot)": slotSize, "AQ_LOCK_BASE": lockBase,
		"AQ_UNIT_SHIFT": unitShift, "AQ_FIELD_MAX": fieldMask, "AQ_PENDING_SHIFT": pendingShift, "AQ_GENERATION_SHIFT": generationShift,
		"aq_usage_header.hi": usageHi, "aq_usage_header.tat": usageTAT, "aq_usage_header.denied_allocs": usageDenied,
		"aq_usage_header.throttle_ns": usageThrottle, "aq_usage_header.launches": usageLaunches, "aq_usage_header.charged_ns": usageCharged,
		"aq_usage_slot.charge": slotCharge, "aq_usage_slot.peak": slotPeak, "aq_usage_slot.allocs": slotAllocs, "aq_usage_slot.denied": slotDenied,
		"aq_usage_slot.pools": slotPools, "aq_usage_slot.ctx": slotContext, "aq_usage_slot.throttled_ns": slotThrottle, "aq_usage_slot.launches": slotLaunches,
		"aq_usage_slot.pid": slotPID, "aq_usage_slot.pidns_ino": slotPIDNamespace, "aq_usage_slot.start_ticks": slotStart,
		"aq_agent.seq": agentSeq, "aq_agent.t_mono": agentTime, "aq_agent.k_permille": agentCorrection, "aq_agent.util_permille": agentBusy,
		"aq_agent.actual_bytes": agentActual, "aq_agent.core_permille": agentCores, "aq_agent.context_mib": agentContext,
		"aq_agent.slot_overhead_mib": agentOverhead, "aq_agent.slot_generation": agentGeneration,
	} {
		if c[name] != strconv.FormatUint(ours, 10) {
			t.Errorf("%s is %q in C and %d in Go", name, c[name], ours)
		}
	}
}

func TestQuotaHasTheLibrarysKeys(t *testing.T) {
	c := abi(t)
	text := string(Quota{GPU: gpu0, MemoryBytes: 3 << 20, CorePercent: 7, CorePolicy: "Burst", Priority: -2}.text())
	got := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if _, ok := got[key]; ok {
			t.Errorf("key %s comes twice", key)
		}
		got[key] = value
	}
	want := map[string]string{
		c["AQ_KEY_VERSION"]: c["AQ_QUOTA_VERSION"], c["AQ_KEY_GPU"]: gpu0, c["AQ_KEY_MEMORY"]: "3145728",
		c["AQ_KEY_CORE_PERCENT"]: "7", c["AQ_KEY_CORE_POLICY"]: "Burst", c["AQ_KEY_PRIORITY"]: "-2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("quota (-want +got):\n%s", diff)
	}
	if !strings.HasSuffix(text, "\n") {
		t.Errorf("the last line is not ended: %q", text)
	}
	longest := Quota{GPU: strings.Repeat("G", 100), MemoryBytes: 1<<64 - 1, CorePercent: 100, CorePolicy: strings.Repeat("p", 100), Priority: -1 << 63}
	if limit, err := strconv.Atoi(c["AQ_QUOTA_BYTES_MAX"]); err != nil || len(longest.text()) > limit {
		t.Errorf("the longest quota has %d bytes, the library reads %d", len(longest.text()), limit)
	}
}

func TestHeadersAreWhereTheLibraryReadsThem(t *testing.T) {
	c := abi(t)
	usage := padded(usageHeader(), headerSize)
	for field, want := range map[string]uint32{"magic": usageMagic, "abi": abiVersion, "hdr_size": headerSize, "slot_size": slotSize, "nslots": slotCount} {
		if got := uint32(take(t, c, usage, "aq_usage_header."+field, 4)); got != want {
			t.Errorf("usage: %s is %#x, want %#x", field, got, want)
		}
	}
	if got := take(t, c, usage, "aq_usage_header.boot_id_hash", 8); got != bootIDHash() || got == 0 {
		t.Errorf("usage: boot_id_hash is %#x, want %#x", got, bootIDHash())
	}
	if got := take(t, c, usage, "aq_usage_header.created_mono", 8); got == 0 || got > monotonicNanoseconds() {
		t.Errorf("usage: created_mono is %d, which is not in the past", got)
	}
	agent := padded(Quota{ContextMiB: 300, CorePermille: 125}.agentHeader(), agentSize)
	for field, want := range map[string]uint32{"magic": agentMagic, "abi": abiVersion, "context_mib": 300, "core_permille": 125} {
		if got := uint32(take(t, c, agent, "aq_agent."+field, 4)); got != want {
			t.Errorf("agent: %s is %#x, want %#x", field, got, want)
		}
	}
	for name, rest := range map[string][]byte{"usage": usage, "agent": agent} {
		for i, b := range rest {
			if b != 0 {
				t.Errorf("%s: byte %d is %#x, but no field of the plugin's lies there", name, i, b)
			}
		}
	}
}

func padded(header []byte, size int) []byte {
	return append(header, make([]byte, size-len(header))...)
}

// take reads a field where C has it and blanks it, so that what is left over shows.
func take(t *testing.T, c map[string]string, header []byte, field string, size int) uint64 {
	t.Helper()
	at, err := strconv.Atoi(c[field])
	if err != nil {
		t.Fatalf("%s is not in abi.golden: %v", field, err)
	}
	var value [8]byte
	copy(value[:], header[at:at+size])
	clear(header[at : at+size])
	if size == 4 {
		return uint64(binary.NativeEndian.Uint32(value[:4]))
	}
	return binary.NativeEndian.Uint64(value[:])
}
