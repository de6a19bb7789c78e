package driver

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/internal/gpu"
)

// hold does what a process of a claim does on its first CUDA call, nil if the claim has no share. The lock is the open
// file's: to those who look for locks of processes it is another's, though they are in this one.
func hold(t testing.TB, d *Driver, uid string) *os.File {
	t.Helper()
	regions, err := filepath.Glob(filepath.Join(d.config.Layout.SharesDir, uid, "*", "usage"))
	if err != nil || len(regions) == 0 {
		return nil
	}
	file, err := os.OpenFile(regions[len(regions)-1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	const lockBase = 1 << 30 // AQ_LOCK_BASE of cdi/preload/abi.h
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: lockBase + 7, Len: 1}); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestShareOfAForceDeletedPodIsKeptWhileAProcessUsesIt(t *testing.T) {
	for name, tc := range map[string]struct{ spoil, restart bool }{
		"":                       {},
		"and its record is lost": {spoil: true},
		"and its record is lost, and the plugin restarts": {spoil: true, restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "h100x8")
			d := r.start(t)
			old, next := claimOf("old", share("gpu", "gpu-0", "s1", "60Gi", "0")), claimOf("next", share("gpu", "gpu-0", "s2", "60Gi", "0"))
			r.allocate(t, old, next)
			mustPrepare(t, d, old)
			process := hold(t, d, "old-uid")
			if tc.spoil {
				write(t, d.records.path("old-uid"), "{")
			}
			r.forget(t, old)
			if tc.restart {
				d = r.start(t)
			}
			d.reconcile(quiet(t))
			if _, err := prepare(t, d, next); err == nil || !strings.Contains(err.Error(), "old") {
				t.Errorf("prepared beside a process that still runs, or the claim is not named: %v", err)
			}
			want := "Warning ShareInUse claim default/old (uid old-uid) is gone, and process"
			if tc.spoil {
				want = "Warning ShareInUse the claim with uid old-uid is gone and its record is lost, and process"
			}
			if told := strings.Join(r.told(), "\n"); !strings.Contains(told, want) {
				t.Errorf("Events: %s", told)
			}
			// Nothing that the container writes or does to the file lets go of the share.
			if err := process.Truncate(0); err != nil {
				t.Fatal(err)
			}
			d.reconcile(quiet(t))
			if _, err := prepare(t, d, next); err == nil {
				t.Error("prepared beside a process that truncated its region")
			}
			_ = process.Close()
			d.reconcile(quiet(t))
			mustPrepare(t, d, next)
			checkInvariant(t, d)
		})
	}
}

func TestWholeGPUOfAForceDeletedPodIsKeptWhileAProcessUsesIt(t *testing.T) {
	r := newRig(t, "h100x8")
	processes := &fakeProcesses{processes: []gpu.Process{{PID: 4711}}}
	r.config.Processes = processes
	d := r.start(t)
	old := claimOf("old", whole("gpu", "gpu-0"))
	r.allocate(t, old)
	mustPrepare(t, d, old)
	r.forget(t, old)
	d.reconcile(quiet(t))
	if told := strings.Join(r.told(), "\n"); !strings.Contains(told, "process 4711 still uses its GPU "+h100GPU0) {
		t.Errorf("Events: %s", told)
	}
	if len(recorded(t, d, nil)) != 1 {
		t.Error("the claim was unprepared")
	}
	processes.processes = nil
	d.reconcile(quiet(t))
	if len(recorded(t, d, nil)) != 0 {
		t.Error("the claim is still prepared")
	}
}

// run starts a process in a container of a claim.
func (m *model) run(t *testing.T) {
	claim := m.pick()
	if claim == nil || !m.prepared[string(claim.UID)] || m.running[string(claim.UID)] != nil {
		return
	}
	if process := hold(t, m.driver, string(claim.UID)); process != nil {
		m.running[string(claim.UID)] = process
	}
}

// end ends one of the processes.
func (m *model) end(*testing.T) {
	if uids := slices.Sorted(maps.Keys(m.running)); len(uids) > 0 {
		m.kill(uids[m.random.IntN(len(uids))])
	}
}

func (m *model) kill(uid string) {
	if process := m.running[uid]; process != nil {
		_ = process.Close()
		delete(m.running, uid)
	}
}

func (m *model) endAll() {
	for uid := range maps.Clone(m.running) {
		m.kill(uid)
	}
}
