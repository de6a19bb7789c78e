package driver

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/internal/gpu"
)

// ail has a GPU's driver tell of a fault.
func (m *model) ail(t *testing.T) {
	uuid := m.hardware.devices[m.random.IntN(len(m.hardware.devices))].UUID
	fault := gpu.XID([]uint64{13, 48, 79}[m.random.IntN(3)])
	m.driver.happened(quiet(t), gpu.Event{GPU: uuid, Fault: fault})
	if fault.Severity.Exceeds(gpu.Informs) {
		m.ill[uuid] = true
	}
}

// recover lets so much time pass that GPUs which need no recovery are well.
func (m *model) recover(t *testing.T) {
	if m.hardware.err != nil {
		return
	}
	m.clock += 2 * m.config.DiscoveryInterval
	_ = m.driver.discover(quiet(t))
	clear(m.ill)
}

// setBack sets the clock back, by up to a month.
func (m *model) setBack(t *testing.T) {
	m.clock -= time.Duration(m.random.Int64N(int64(31 * 24 * time.Hour)))
	_ = m.driver.discover(quiet(t))
}

// checkHealth compares which GPUs are tainted.
func (m *model) checkHealth(t *testing.T) {
	t.Helper()
	want := slices.Sorted(maps.Keys(m.ill))
	got := slices.Sorted(maps.Keys(m.driver.healthTaints()))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unhealthy GPUs (-model +driver):\n%s", diff)
	}
}
