package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"aliquot.dev/aliquot/internal/gpu"
)

// ailment is a fault that a GPU has.
type ailment struct {
	gpu.Fault
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"` // when it last happened; the file may say earlier
	// Told: the driver told of it when it happened. Any other is seen at each look, and is over when it is not.
	Told bool `json:"told,omitempty"`
}

// patient is a GPU that has ailments.
type patient struct {
	Device   gpu.Device `json:"device"`           // as it was when it last answered, which is published while it does not
	Silent   bool       `json:"silent,omitempty"` // it did not answer at the last look
	Ailments []ailment  `json:"ailments"`
}

// worst is the gravest ailment, of those the first.
func (p patient) worst() ailment {
	var worst ailment
	for _, a := range p.Ailments {
		if a.Severity.Exceeds(worst.Severity) {
			worst = a
		}
	}
	return worst
}

// isUnhealthy says whether work should be kept away.
func (p patient) isUnhealthy() bool { return p.worst().Severity.Exceeds(gpu.Informs) }

func (p patient) find(kind string) int {
	return slices.IndexFunc(p.Ailments, func(a ailment) bool { return a.Kind == kind })
}

// health knows what is wrong with the node's GPUs and keeps it in a file, since a restart must not make them well. A reboot
// resets all GPUs, and so does loading the NVIDIA driver: what was told before either is forgotten, and what is still wrong is seen again.
type health struct {
	path   string
	start  func() string // tells one start of the GPUs from another
	now    func() time.Time
	settle time.Duration // for how long a GPU has to be sound before it is well

	mu       sync.Mutex
	known    map[string]gpu.Device // GPUs that answered at the last look, by UUID
	patients map[string]patient    // by UUID
	started  string                // what start said at the last look
	unkept   bool                  // the file says something else
	changed  chan struct{}         // closed at the next change
}

func newHealth(path string, settle time.Duration) *health {
	return &health{
		path: path, start: gpuStart, now: time.Now, settle: settle,
		known: map[string]gpu.Device{}, patients: map[string]patient{}, changed: make(chan struct{}),
	}
}

const healthVersion = 1

type healthFile struct {
	Version  int                `json:"version"`
	Started  string             `json:"started"`
	Patients map[string]patient `json:"patients"`
}

// load reads what an earlier run kept, or another process. A file that cannot be read is as none: what is wrong now will be seen, and
// only what was told is forgotten.
func (h *health) load() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started = h.start()
	h.known, h.patients = map[string]gpu.Device{}, map[string]patient{}
	defer h.change()
	data, err := os.ReadFile(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var file healthFile
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil || file.Version != healthVersion {
		h.unkept = true
		return errors.Join(fmt.Errorf("the health of GPUs that an earlier run kept cannot be read from %s", h.path), err)
	}
	if file.Started != h.started {
		h.unkept = len(file.Patients) > 0
		return nil
	}
	for uuid, p := range file.Patients {
		h.patients[uuid] = p
		h.known[uuid] = p.Device
	}
	return nil
}

// save writes the file whole or not at all. It expects mu to be held.
func (h *health) save() error {
	data, err := json.MarshalIndent(healthFile{healthVersion, h.started, h.patients}, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(h.path), 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(h.path, data, 0o600, renameio.WithTempDir(filepath.Dir(h.path)))
	}
	h.unkept = err != nil
	if err != nil {
		return fmt.Errorf("keep the health of GPUs: %w", err)
	}
	return nil
}

// happened takes in what the driver tells of a GPU, and says whether that is new.
func (h *health) happened(e gpu.Event) (bool, error) {
	if !e.Fault.Severity.Exceeds(gpu.Informs) {
		return false, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p, ok := h.patients[e.GPU]
	if !ok {
		p.Device = h.known[e.GPU]
	}
	p.Ailments = slices.Clone(p.Ailments)
	now := h.now()
	if i := p.find(e.Fault.Kind); i >= 0 {
		p.Ailments[i].Last = now
		h.patients[e.GPU] = p
		return false, nil
	}
	p.Ailments = append(p.Ailments, ailment{Fault: e.Fault, Since: now, Last: now, Told: true})
	h.patients[e.GPU] = p
	h.change()
	return true, h.save()
}

// change wakes those who wait for one. It expects mu to be held.
func (h *health) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// look takes in what a discovery found: the GPUs that answer, and of the others which are lost for sure, by index, and on which
// there are shares. It returns the patients before.
func (h *health) look(answer []gpu.Device, lost map[int]bool, held map[string]bool) (before map[string]patient, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = maps.Clone(h.patients)
	started := h.start()
	anew := started != h.started
	h.started = started
	silent := maps.Clone(h.known)
	for _, device := range answer {
		delete(silent, device.UUID)
		h.known[device.UUID] = device
		h.put(device.UUID, h.examine(h.patients[device.UUID], device, anew))
	}
	for uuid, device := range silent {
		p, ok := h.patients[uuid]
		if !ok {
			p.Device = device
		}
		if !held[uuid] && !p.isUnhealthy() {
			delete(h.known, uuid)
			delete(h.patients, uuid)
			continue
		}
		h.put(uuid, h.miss(p, lost[device.Index]))
	}
	if !h.unkept && (!anew || len(before) == 0) && maps.EqualFunc(before, h.patients, sameAilments) {
		return before, nil
	}
	h.change()
	return before, h.save()
}

func (h *health) put(uuid string, p patient) {
	if len(p.Ailments) == 0 {
		delete(h.patients, uuid)
		return
	}
	h.patients[uuid] = p
}

func sameAilments(a, b patient) bool {
	return a.Silent == b.Silent && slices.EqualFunc(a.Ailments, b.Ailments, func(x, y ailment) bool { return x.Fault == y.Fault })
}

// examine is what a patient has, now that it answers: what is seen, and what it was told of unless it has recovered, as all
// have when GPUs were started anew. One that did not answer before was reset in between. One whose driver says that it needs no recovery may not have been asked after what has
// only just happened.
func (h *health) examine(p patient, device gpu.Device, anew bool) patient {
	now := h.now()
	after := patient{Device: device}
	for _, a := range p.Ailments {
		if a.Last.After(now) { // the clock was set back
			a.Since, a.Last = now, now
		}
		recovered := anew || p.Silent || device.Health.Sound && now.Sub(a.Last) >= h.settle
		if a.Told && !recovered {
			after.Ailments = append(after.Ailments, a)
		}
	}
	for _, fault := range device.Health.Faults {
		seen := ailment{Fault: fault, Since: now, Last: now}
		if i := p.find(fault.Kind); i >= 0 {
			seen.Since = p.Ailments[i].Since
		}
		if after.find(fault.Kind) < 0 {
			after.Ailments = append(after.Ailments, seen)
		}
	}
	return after
}

// miss is what a patient has that does not answer. Only one that is lost for sure is known to compute nothing.
func (h *health) miss(p patient, lost bool) patient {
	fault := gpu.Silent
	if lost {
		fault = gpu.Lost
	}
	after := patient{Device: p.Device, Silent: true}
	for _, a := range p.Ailments {
		if a.Told || a.Kind == fault.Kind {
			after.Ailments = append(after.Ailments, a)
		}
	}
	if after.find(fault.Kind) < 0 {
		now := h.now()
		after.Ailments = append(after.Ailments, ailment{Fault: fault, Since: now, Last: now})
	}
	return after
}

// all is what is wrong now, and a channel that is closed when that changes.
func (h *health) all() (map[string]patient, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.patients), h.changed
}
