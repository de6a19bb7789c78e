package driver

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	modelSeed  = flag.Uint64("model.seed", 0, "seed of the model test; 0 takes a new one")
	modelSteps = flag.Int("model.steps", 3000, "steps of the model test")
)

// model is what a driver ought to know, in one map, beside the driver itself.
type model struct {
	*rig
	random   *rand.Rand
	driver   *Driver                               // leads
	other    *Driver                               // stands by; the kubelet may call it all the same
	claims   map[string]*resourceapi.ResourceClaim // all that were ever made and may still matter, by UID
	inAPI    map[string]bool
	prepared map[string]bool     // those that hold something
	spoilt   map[string]bool     // those of prepared whose record on disk is unreadable, was set aside or is missing
	ill      map[string]bool     // GPUs that are tainted, by UUID
	running  map[string]*os.File // processes that hold a share, by UID of the claim
	unmended bool                // files may be missing until the next successful reconciliation
	made     int
	offers   map[string]offer
}

// TestModel does random things to a node and compares the driver with the model after each.
func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-model.seed %d", seed)
	steps := *modelSteps
	if testing.Short() {
		steps = min(steps, 300)
	}
	m := &model{rig: newRigIn(t, memoryDir(t), "mixed"), random: rand.New(rand.NewPCG(seed, 0)), claims: map[string]*resourceapi.ResourceClaim{}, inAPI: map[string]bool{}, prepared: map[string]bool{}, spoilt: map[string]bool{}, ill: map[string]bool{}, running: map[string]*os.File{}}
	t.Cleanup(m.endAll)
	m.config.DiscoveryInterval = time.Hour
	m.driver, m.other, m.offers = m.start(t), m.startAs(t, true), offersOf(m.hardware.devices)
	actions := []struct {
		name   string
		weight int
		do     func(*model, *testing.T)
	}{
		{"allocate", 20, (*model).create},
		{"prepare", 40, (*model).prepare},
		{"unprepare", 20, (*model).unprepare},
		{"delete from the API", 8, (*model).delete},
		{"reconcile", 8, (*model).reconcile},
		{"restart", 8, (*model).restart},
		{"the other one restarts", 3, (*model).restartOther},
		{"the other one takes over", 4, (*model).takeOver},
		{"wipe /run", 3, (*model).wipe},
		{"spoil a record", 3, (*model).spoil},
		{"API up or down", 4, (*model).toggleAPI},
		{"hardware up or down", 2, (*model).toggleHardware},
		{"a GPU falls ill", 3, (*model).ail},
		{"GPUs recover", 1, (*model).recover},
		{"the clock is set back", 1, (*model).setBack},
		{"run a process", 6, (*model).run},
		{"a process ends", 3, (*model).end},
	}
	done := map[string]int{}
	for step := 0; step < steps && !t.Failed(); step++ {
		at := m.random.IntN(137)
		for _, action := range actions {
			if at -= action.weight; at < 0 {
				action.do(m, t)
				done[action.name]++
				if m.check(t); t.Failed() {
					t.Errorf("at step %d of seed %d: %s", step, seed, action.name)
				}
				break
			}
		}
		m.told() // so that the recorder does not fill up
	}
	t.Logf("did %v", done)
}

// memoryDir is a directory in memory where there is one.
func memoryDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "aliquot-model-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// check compares the driver's books with the model's, and the disk with both as far as nothing is known to be missing.
func (m *model) check(t *testing.T) {
	t.Helper()
	m.forgetBare(t)
	for _, d := range []*Driver{m.driver, m.other} {
		settleAll(t, d)
		m.checkDriver(t, d)
	}
	m.checkHealth(t)
	if !m.unmended && len(m.spoilt) == 0 {
		checkInvariant(t, m.driver)
	}
}

func (m *model) checkDriver(t *testing.T, d *Driver) {
	t.Helper()
	booked := map[string]bool{}
	for _, uid := range d.ledger.Claims() {
		booked[string(uid)] = true
	}
	for uid := range m.spoilt { // whether these are booked depends on whether they were found out
		delete(booked, uid)
		if m.prepared[uid] {
			booked[uid] = true
		}
	}
	if diff := cmp.Diff(m.prepared, booked); diff != "" {
		t.Errorf("claims that hold something (-model +driver):\n%s", diff)
	}
	checkFollowed(t, d)
	checkBooks(t, d, m.spoilt)
}

// pick takes any claim that was ever made, nil if there is none.
func (m *model) pick() *resourceapi.ResourceClaim {
	if len(m.claims) == 0 {
		return nil
	}
	uids := slices.Sorted(maps.Keys(m.claims))
	return m.claims[uids[m.random.IntN(len(uids))]]
}

func (m *model) create(t *testing.T) {
	if len(m.inAPI) > 12 {
		return
	}
	m.made++
	var results []resourceapi.DeviceRequestAllocationResult
	for i := range 1 + m.random.IntN(3) {
		device, request := m.device(), fmt.Sprintf("r%d", i)
		if m.random.IntN(6) == 0 {
			results = append(results, whole(request, device))
			continue
		}
		results = append(results, share(request, device, fmt.Sprintf("s%d-%d", m.made, i), fmt.Sprintf("%dMi", 1+m.random.IntN(8000)), fmt.Sprint(m.random.IntN(50))))
	}
	claim := claimOf(fmt.Sprintf("c%d", m.made), results...)
	m.allocate(t, claim)
	m.claims[string(claim.UID)], m.inAPI[string(claim.UID)] = claim, true
}

// device is a GPU, or now and then a partition.
func (m *model) device() string {
	if m.random.IntN(4) > 0 {
		return fmt.Sprintf("gpu-%d", m.random.IntN(4))
	}
	names := slices.Sorted(maps.Keys(m.offers))
	return names[m.random.IntN(len(names))]
}

// prepare is possible only for what the API has and while it answers: the kubelet library reads the claim there first.
func (m *model) prepare(t *testing.T) {
	claim := m.pick()
	if claim == nil || m.apiErr != nil || !m.inAPI[string(claim.UID)] {
		return
	}
	d := m.either()
	m.settleLost(d)
	_, err := prepare(t, d, claim)
	want := m.hardware.err == nil && m.fits(claim)
	if (err == nil) != want {
		t.Errorf("prepare claim %s: got error %v, want success: %t", claim.Name, err, want)
	}
	if err == nil {
		m.prepared[string(claim.UID)] = true
		delete(m.spoilt, string(claim.UID))
	}
}

func (m *model) unprepare(t *testing.T) {
	claim := m.pick()
	if claim == nil {
		return
	}
	m.kill(string(claim.UID)) // the kubelet waits for that
	d := m.either()
	settleAll(t, d)
	kept := m.keepsPartition(d, string(claim.UID))
	err := unprepare(t, d, claim)
	if (err == nil) == kept {
		t.Errorf("unprepare claim %s: got error %v, want one: %t", claim.Name, err, kept)
	}
	if err != nil {
		m.unmended = true // its spec is gone
		return
	}
	if m.spoilt[string(claim.UID)] {
		m.unmended = true // nobody knew of its partition, which the next reconcile removes
	}
	m.release(string(claim.UID))
}

// keepsPartition says whether a claim cannot be unprepared, since the hardware does not answer and is to remove a
// partition that nobody else has. One whose record is lost does not know of any.
func (m *model) keepsPartition(d *Driver, uid string) bool {
	r, known := d.booked[types.UID(uid)]
	return m.hardware.err != nil && known && slices.ContainsFunc(r.Allocations, func(a allocation) bool {
		return d.ours[a.slot()] && !d.needed(a.slot(), r.UID)
	})
}

func (m *model) release(uid string) {
	delete(m.prepared, uid)
	delete(m.spoilt, uid)
	if !m.inAPI[uid] {
		delete(m.claims, uid)
	}
}

func (m *model) delete(t *testing.T) {
	claim := m.pick()
	if claim == nil || !m.inAPI[string(claim.UID)] {
		return
	}
	m.forget(t, claim)
	delete(m.inAPI, string(claim.UID))
}

func (m *model) reconcile(t *testing.T) {
	_ = m.driver.discover(quiet(t))
	m.driver.reconcile(quiet(t))
	m.reconciled(m.driver)
}

func (m *model) restart(t *testing.T) {
	m.driver = m.start(t)
	m.reconciled(m.driver)
}

func (m *model) restartOther(t *testing.T) {
	m.other = m.startAs(t, true)
	m.reconciled(m.other)
}

// takeOver is the driver's, without the wait for the turn.
func (m *model) takeOver(t *testing.T) {
	m.driver.standby.Store(true)
	m.driver, m.other = m.other, m.driver
	m.driver.standby.Store(false)
	if err := m.driver.health.load(); err != nil {
		t.Fatal(err)
	}
	_ = m.driver.discover(quiet(t))
	m.driver.reconcile(quiet(t))
	m.reconciled(m.driver)
}

// either is the one that the kubelet calls.
func (m *model) either() *Driver {
	if m.random.IntN(2) == 0 {
		return m.other
	}
	return m.driver
}

// reconciled is what a reconciliation ought to do.
func (m *model) reconciled(d *Driver) {
	if m.apiErr != nil {
		return
	}
	for uid := range maps.Clone(m.prepared) {
		if !m.inAPI[uid] && !m.spoilt[uid] && !m.keepsPartition(d, uid) && m.running[uid] == nil {
			m.release(uid)
		}
	}
	if m.hardware.err != nil {
		m.unmended = true // specs may be gone whose partition could not be removed
		return
	}
	for uid := range maps.Clone(m.spoilt) {
		m.settle(uid)
	}
	m.unmended = false
}

// settleLost is what a prepare ought to do first: what was found out to be lost is rebuilt or forgotten.
func (m *model) settleLost(d *Driver) {
	for uid := range maps.Clone(m.spoilt) {
		if m.hardware.err == nil && d.isLost(uid) {
			m.settle(uid)
		}
	}
}

// settle is what becomes of a claim whose record is lost.
func (m *model) settle(uid string) {
	if m.inAPI[uid] {
		delete(m.spoilt, uid)
	} else if m.running[uid] == nil {
		m.release(uid)
	}
}

func (m *model) wipe(t *testing.T) {
	m.endAll() // nothing lives through what wipes a node's memory
	wipe(t, m.rig)
	m.unmended = true
}

func (m *model) spoil(t *testing.T) {
	claim := m.pick()
	if claim == nil || !m.prepared[string(claim.UID)] {
		return
	}
	record := m.driver.records.path(string(claim.UID))
	if m.random.IntN(2) == 0 {
		write(t, record, `{"version": 1, "uid`)
	} else if err := os.Remove(record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	m.spoilt[string(claim.UID)] = true
}

// forgetBare releases claims of which nothing is left: a driver that reads the books anew knows nothing of them any more, and the kubelet will have
// them prepared.
func (m *model) forgetBare(t *testing.T) {
	stored, err := m.driver.store.Claims()
	if err != nil {
		t.Fatal(err)
	}
	for uid := range maps.Clone(m.spoilt) {
		files, err := filepath.Glob(m.driver.records.path(uid) + "*")
		if err != nil {
			t.Fatal(err)
		}
		if len(files) > 0 || slices.Contains(stored, uid) {
			continue
		}
		m.release(uid)
		for _, d := range []*Driver{m.driver, m.other} { // as they do each minute
			if err := d.loadRecords(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (m *model) toggleAPI(*testing.T) {
	if m.apiErr = errors.New("connection refused"); m.random.IntN(2) == 0 {
		m.apiErr = nil
	}
}

func (m *model) toggleHardware(t *testing.T) {
	if m.hardware.err = errors.New("driver not loaded"); m.random.IntN(2) == 0 {
		m.hardware.err = nil
	}
	_ = m.driver.discover(quiet(t))
	_ = m.other.discover(quiet(t))
}
