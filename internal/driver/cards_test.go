package driver

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/internal/gpu"
)

// busyHardware takes its time: each change of a GPU's partitions tells that it has begun and waits until it may go on. It
// notes when two change one GPU at the same time.
type busyHardware struct {
	*fakeHardware

	mu       sync.Mutex
	changing map[string]bool
	clashes  []string

	alone bool                     // only one process uses it
	begun chan string              // nil: nobody is told
	waits map[string]chan struct{} // by UUID of a GPU
}

func makeBusy(r *rig) *busyHardware {
	h := &busyHardware{fakeHardware: r.hardware, changing: map[string]bool{}, waits: map[string]chan struct{}{}}
	r.config.Hardware, r.config.Partitioner = h, h
	return h
}

func (h *busyHardware) Devices() ([]gpu.Device, []error, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// A process that sees that another one changes something may look too early. It looks again after it.
	for uuid := range h.changing {
		if !h.alone {
			break
		}
		h.clashes = append(h.clashes, "asked while "+uuid+" was changed")
	}
	return h.fakeHardware.Devices()
}

func (h *busyHardware) Edits(uuids []string) (specs.ContainerEdits, map[string]specs.ContainerEdits, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fakeHardware.Edits(uuids)
}

func (h *busyHardware) FindPartition(uuid, profile string, place gpu.Placement) (gpu.Partition, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fakeHardware.FindPartition(uuid, profile, place)
}

func (h *busyHardware) CreatePartition(uuid, profile string, place gpu.Placement) (made gpu.Partition, err error) {
	h.change(uuid, func() { made, err = h.fakeHardware.CreatePartition(uuid, profile, place) })
	return made, err
}

func (h *busyHardware) DestroyPartition(uuid, profile string, place gpu.Placement) (err error) {
	h.change(uuid, func() { err = h.fakeHardware.DestroyPartition(uuid, profile, place) })
	return err
}

func (h *busyHardware) SetMIGMode(uuid string, enable bool) (err error) {
	h.change(uuid, func() { err = h.fakeHardware.SetMIGMode(uuid, enable) })
	return err
}

func (h *busyHardware) change(uuid string, change func()) {
	h.mu.Lock()
	if h.changing[uuid] {
		h.clashes = append(h.clashes, uuid+" was changed twice at once")
	}
	h.changing[uuid] = true
	h.mu.Unlock()
	if h.begun != nil {
		h.begun <- uuid
		<-h.waits[uuid]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	delete(h.changing, uuid)
}

// A partition takes seconds to make. What is prepared and unprepared on other GPUs meanwhile does not wait for it, in this
// process or in another one, and what is on its own GPU does.
func TestNobodyWaitsForThePartitionsOfAnotherGPU(t *testing.T) {
	r := newRig(t, "h100x8")
	h := makeBusy(r)
	d, other := r.start(t), r.start(t)
	h.begun = make(chan string)
	for _, device := range r.hardware.devices {
		h.waits[device.UUID] = make(chan struct{})
	}
	slow := claimOf("slow", share("gpu", "gpu-0-mig-1g-10gb-0", "s1", "1Gi", "0"))
	beside := claimOf("beside", share("gpu", "gpu-0-mig-1g-10gb-1", "s2", "1Gi", "0"))
	elsewhere := claimOf("elsewhere", share("gpu", "gpu-1-mig-1g-10gb-0", "s3", "1Gi", "0"))
	simple := claimOf("simple", share("gpu", "gpu-2", "s4", "1Gi", "0"))
	r.allocate(t, slow, beside, elsewhere, simple)

	var prepares sync.WaitGroup
	start := func(d *Driver, claim *resourceapi.ResourceClaim) {
		prepares.Go(func() {
			if _, err := prepare(t, d, claim); err != nil {
				t.Errorf("claim %s: %v", claim.Name, err)
			}
		})
	}
	start(d, slow)
	if uuid := <-h.begun; uuid != h100GPU0 {
		t.Fatalf("changes %s", uuid)
	}
	start(other, beside)
	for _, d := range []*Driver{d, other} {
		mustPrepare(t, d, simple)
		if err := unprepare(t, d, simple); err != nil {
			t.Error(err)
		}
	}
	start(d, elsewhere)
	if uuid := <-h.begun; uuid != h100GPU1 {
		t.Fatalf("changes %s", uuid)
	}
	// The kubelet gave up on the slow one and ends it: that waits, and then takes back what was made.
	ended := make(chan error)
	go func() { ended <- unprepare(t, other, slow) }()
	go func() {
		for range h.begun { // of those that waited
		}
	}()
	for _, wait := range h.waits {
		close(wait)
	}
	prepares.Wait()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	settleAll(t, d)
	checkInvariant(t, d)
	if partitions := r.hardware.mig(h100GPU0).Partitions; len(partitions) != 1 || partitions[0].Placement.Start != 1 {
		t.Errorf("partitions of the first GPU: %v", partitions)
	}
	if len(h.clashes) > 0 {
		t.Errorf("clashes: %v", h.clashes)
	}
}

// Claims of every kind come and go at once, while the node is looked at and reconciled, in one process or two.
func TestClaimsComeAndGoAtOnce(t *testing.T) {
	for _, processes := range []int{1, 2} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) { comeAndGo(t, processes) })
	}
}

func comeAndGo(t *testing.T, processes int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := newRigIn(t, memoryDir(t), "h100x8")
	h := makeBusy(r)
	h.alone = processes == 1
	var drivers []*Driver
	for range processes {
		drivers = append(drivers, r.start(t))
	}
	var workers sync.WaitGroup
	for worker := range 6 {
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		workers.Go(func() {
			for i := range 40 {
				oneComesAndGoes(t, r, random, fmt.Sprintf("%d-%d", worker, i), drivers)
			}
		})
	}
	for _, d := range drivers {
		workers.Go(func() {
			for range 20 {
				_ = d.discover(quiet(t))
				d.reconcile(quiet(t))
			}
		})
	}
	workers.Wait()
	drivers[0].reconcile(quiet(t)) // all claims are gone
	for _, d := range drivers {
		settleAll(t, d)
		if checkInvariant(t, d); len(d.booked) > 0 || len(d.ours) > 0 {
			t.Errorf("left are %v and %v", d.booked, d.ours)
		}
	}
	for _, device := range r.hardware.devices {
		if len(device.MIG.Partitions) > 0 || device.MIG.Enabled {
			t.Errorf("%s has partitions %v, MIG mode %t", device.Name(), device.MIG.Partitions, device.MIG.Enabled)
		}
	}
	if len(h.clashes) > 0 {
		t.Errorf("clashes: %v", h.clashes)
	}
}

// oneComesAndGoes is a claim that is refused where others are in its way, and that the kubelet does not always unprepare before it
// is deleted.
func oneComesAndGoes(t *testing.T, r *rig, random *rand.Rand, name string, drivers []*Driver) {
	devices := []string{"gpu-0", "gpu-0-mig-1g-10gb-0", "gpu-0-mig-1g-10gb-1", "gpu-0-mig-7g-80gb-0", "gpu-1", "gpu-1-mig-2g-20gb-0", "gpu-1-mig-1g-10gb-0"}
	claim := claimOf("c"+name, share("gpu", devices[random.IntN(len(devices))], "s"+name, "1Gi", "0"))
	if err := r.client.Tracker().Add(claim); err != nil {
		t.Error(err)
	}
	_, _ = prepare(t, drivers[random.IntN(len(drivers))], claim)
	if random.IntN(4) > 0 {
		if err := unprepare(t, drivers[random.IntN(len(drivers))], claim); err != nil {
			t.Error(err)
		}
	}
	if err := r.client.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), claim.Namespace, claim.Name); err != nil {
		t.Error(err)
	}
}
