package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/gpu"
)

// The GPUs of fixture h100x8.
const (
	h100GPU0  = "GPU-4c8f1a20-6d3b-4e52-8f0a-1b7d90c5a100"
	h100GPU1  = "GPU-4c8f1a20-6d3b-4e52-8f0a-1b7d90c5a101"
	h100Bytes = 81008 << 20
)

// fakeHardware answers as it is told, and is divided as it is asked.
type fakeHardware struct {
	devices []gpu.Device
	skipped []error
	err     error
	noEdits error            // what Edits returns
	refuses map[string]error // what changes of partitions return, by "create", "destroy" or "mode"
	made    int              // partitions, ever
}

func (h *fakeHardware) fake() *fakeHardware { return h }

// Devices gives a copy: what the driver was told does not change when the hardware does.
func (h *fakeHardware) Devices() ([]gpu.Device, []error, error) {
	devices := slices.Clone(h.devices)
	for i, device := range devices {
		if device.MIG != nil {
			mig := *device.MIG
			mig.Partitions = slices.Clone(mig.Partitions)
			devices[i].MIG = &mig
		}
	}
	return devices, h.skipped, h.err
}

func (h *fakeHardware) Edits(uuids []string) (specs.ContainerEdits, map[string]specs.ContainerEdits, error) {
	byUUID := map[string]specs.ContainerEdits{}
	for _, uuid := range uuids {
		byUUID[uuid] = specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/" + uuid, Type: "c", Major: 195}}}
	}
	return specs.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, byUUID, h.noEdits
}

func (h *fakeHardware) mig(uuid string) *gpu.MIG {
	for _, device := range h.devices {
		if device.UUID == uuid && device.MIG != nil {
			return device.MIG
		}
	}
	return &gpu.MIG{}
}

func (h *fakeHardware) FindPartition(uuid, profile string, place gpu.Placement) (gpu.Partition, bool, error) {
	m := h.mig(uuid)
	i := slices.IndexFunc(m.Partitions, func(p gpu.Partition) bool { return p.At(profile, place) })
	if i < 0 || h.err != nil {
		return gpu.Partition{}, false, h.err
	}
	return m.Partitions[i], true, nil
}

func (h *fakeHardware) CreatePartition(uuid, profile string, place gpu.Placement) (gpu.Partition, error) {
	if err := cmp.Or(h.err, h.refuses["create"]); err != nil {
		return gpu.Partition{}, err
	}
	m := h.mig(uuid)
	for i, p := range m.Partitions {
		if p.At(profile, place) {
			m.Partitions[i].UUID = cmp.Or(p.UUID, h.nextUUID()) // one that was half made is completed
			return m.Partitions[i], nil
		}
		if p.Placement.Overlaps(place) {
			return gpu.Partition{}, fmt.Errorf("partition %s at %d is in the way", p.Profile, p.Placement.Start)
		}
	}
	made := gpu.Partition{UUID: h.nextUUID(), Profile: profile, Placement: place}
	m.Enabled, m.Partitions = true, append(m.Partitions, made)
	return made, nil
}

func (h *fakeHardware) nextUUID() string {
	h.made++
	return fmt.Sprintf("MIG-00000000-0000-0000-0000-%012d", h.made)
}

func (h *fakeHardware) DestroyPartition(uuid, profile string, place gpu.Placement) error {
	if err := cmp.Or(h.err, h.refuses["destroy"]); err != nil {
		return err
	}
	m := h.mig(uuid)
	m.Partitions = slices.DeleteFunc(m.Partitions, func(p gpu.Partition) bool { return p.At(profile, place) })
	return nil
}

func (h *fakeHardware) SetMIGMode(uuid string, enable bool) error {
	if err := cmp.Or(h.err, h.refuses["mode"]); err != nil {
		return err
	}
	m := h.mig(uuid)
	if len(m.Partitions) > 0 {
		return errors.New("In use by another client")
	}
	m.Enabled = enable
	return nil
}

// rig is a node and its API server, over which drivers come and go.
type rig struct {
	config   Config
	hardware *fakeHardware
	client   *fake.Clientset
	events   *events.FakeRecorder
	apiErr   error                                  // what the API server answers when it is down
	getClaim *atomic.Pointer[func() runtime.Object] // answers in place of the API server; a client in use is not to be changed
	clock    time.Duration                          // what the node's clock is ahead
}

func newRig(t testing.TB, fixture string) *rig {
	t.Helper()
	return newRigIn(t, t.TempDir(), fixture)
}

func newRigIn(t testing.TB, root, fixture string) *rig {
	t.Helper()
	devices, err := gpu.FromFile(filepath.Join("..", "gpu", "testdata", fixture+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{getClaim: &atomic.Pointer[func() runtime.Object]{}, hardware: &fakeHardware{devices: devices}, client: fake.NewClientset(), events: events.NewFakeRecorder(1000)}
	r.client.PrependReactor("*", "resourceclaims", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if get := r.getClaim.Load(); get != nil && action.GetVerb() == "get" {
			return true, (*get)(), nil
		}
		return r.apiErr != nil, nil, r.apiErr
	})
	r.config = Config{
		NodeName: "node",
		DataDir:  filepath.Join(root, "data"),
		Layout: cdi.Layout{
			SpecDir: filepath.Join(root, "cdi"), SharesDir: filepath.Join(root, "shares"), Library: "/lib/libaliquot.so", PreloadList: "/lib/ld.so.preload",
		},
		Hardware:    r.hardware,
		Partitioner: r.hardware,
		Client:      r.client,
		Events:      r.events,
	}
	return r
}

// start is what Start does before it serves.
func (r *rig) start(t testing.TB) *Driver {
	t.Helper()
	return r.startAs(t, false)
}

// startAs starts one that leads or one that stands by.
func (r *rig) startAs(t testing.TB, standby bool) *Driver {
	t.Helper()
	d, err := New(r.config)
	if err != nil {
		t.Fatal(err)
	}
	d.standby.Store(standby)
	d.health.now = func() time.Time { return time.Now().Add(r.clock) }
	if err := d.loadRecords(); err != nil {
		t.Fatal(err)
	}
	_ = d.health.load()      // its error is of the tests of health
	_ = d.discover(quiet(t)) // its error stays in the driver
	d.reconcile(quiet(t))
	return d
}

// allocate puts claims into the API.
func (r *rig) allocate(t testing.TB, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	for _, claim := range claims {
		if err := r.client.Tracker().Add(claim); err != nil {
			t.Fatal(err)
		}
	}
}

// forget removes a claim from the API.
func (r *rig) forget(t testing.TB, claim *resourceapi.ResourceClaim) {
	t.Helper()
	if err := r.client.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), claim.Namespace, claim.Name); err != nil {
		t.Fatal(err)
	}
}

// told returns the Events since the last call.
func (r *rig) told() []string {
	var notes []string
	for len(r.events.Events) > 0 {
		notes = append(notes, <-r.events.Events)
	}
	return notes
}

// quiet is a context whose logger says nothing.
func quiet(t testing.TB) context.Context {
	return klog.NewContext(t.Context(), klog.Logger{})
}

func claimOf(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: results},
		}},
	}
}

// share is what the scheduler writes for a share of a GPU.
func share(request, device, shareID, memory, cores string) resourceapi.DeviceRequestAllocationResult {
	result := whole(request, device)
	result.ShareID = ptr.To(types.UID(shareID))
	result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
		v1alpha1.CapacityMemory: resource.MustParse(memory), v1alpha1.CapacityCores: resource.MustParse(cores),
	}
	return result
}

// whole is what a scheduler that knows no shares writes.
func whole(request, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: v1alpha1.DriverName, Pool: "node/gpus", Device: device}
}

// prepare is what the kubelet sees of one claim.
func prepare(t testing.TB, d *Driver, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	t.Helper()
	results, err := d.PrepareResourceClaims(quiet(t), []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	result, ok := results[claim.UID]
	if !ok {
		t.Fatalf("no answer for claim %s", claim.Name)
	}
	return result.Devices, result.Err
}

func mustPrepare(t testing.TB, d *Driver, claim *resourceapi.ResourceClaim) []kubeletplugin.Device {
	t.Helper()
	devices, err := prepare(t, d, claim)
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func unprepare(t testing.TB, d *Driver, claim *resourceapi.ResourceClaim) error {
	t.Helper()
	results, err := d.UnprepareResourceClaims(quiet(t), []kubeletplugin.NamespacedObject{
		{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, UID: claim.UID},
	})
	if err != nil {
		t.Fatal(err)
	}
	result, ok := results[claim.UID]
	if !ok {
		t.Fatalf("no answer for claim %s", claim.Name)
	}
	return result
}
