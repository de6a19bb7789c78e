package driver

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/inventory"
	"aliquot.dev/aliquot/internal/quota"
)

// plan says what a claim's allocation means on this node, in the order of its results. It has no effects. Results of
// other drivers are passed over.
func plan(claim *resourceapi.ResourceClaim, nodeName string, n node) (record, error) {
	r := record{Version: recordVersion, UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name}
	if claim.Status.Allocation == nil {
		return record{}, fmt.Errorf("claim has no allocation")
	}
	for i, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != v1alpha1.DriverName {
			continue
		}
		allocated, err := planResult(claim, result, nodeName, n)
		if err != nil {
			return record{}, fmt.Errorf("status.allocation.devices.results[%d], request %q: %w", i, result.Request, err)
		}
		r.Allocations = append(r.Allocations, allocated)
	}
	return r, nil
}

func planResult(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult, nodeName string, n node) (allocation, error) {
	if pool := inventory.PoolName(nodeName); result.Pool != pool {
		return allocation{}, fmt.Errorf("pool %q is not this node's, %q", result.Pool, pool)
	}
	device, slot, ok := n.byName(result.Device)
	if !ok {
		return allocation{}, fmt.Errorf("device %q is not on this node now: %s; delete the pod so that its claim is allocated anew", result.Device, n.whyNot(result.Device))
	}
	settings, err := parametersOf(claim, result)
	if err != nil {
		return allocation{}, err
	}
	a := allocation{Request: result.Request, Pool: result.Pool, Device: result.Device, GPU: device.UUID, AdminAccess: ptr.Deref(result.AdminAccess, false)}
	total := device.Allocatable(v1alpha1.MemoryStep)
	if slot != nil {
		total = slot.Allocatable(v1alpha1.MemoryStep)
		a.Partition = &partition{Profile: slot.Profile.Name, Placement: slot.Placement, MemoryBytes: total}
	}
	if result.ShareID != nil {
		a.ShareID = *result.ShareID
	}
	if a.AdminAccess {
		return a, nil
	}
	if a.Limits, err = quota.For(result, total); err != nil {
		return a, err
	}
	return a, settings.apply(&a.Limits)
}

// id tells results of one request apart: a request may have several devices, and a device several shares.
func (a allocation) id() string {
	if a.ShareID != "" {
		return string(a.ShareID)
	}
	return a.Device
}

// limited says whether the preload library holds this allocation. Whole devices and admins' monitors run without it, and what
// is only to be counted.
func (a allocation) limited() bool {
	return !a.AdminAccess && !a.Limits.Whole && !a.Limits.Unenforced
}

// shares are what the ledger books. An admin's access takes nothing away from anybody.
func (r record) shares() []quota.Share {
	var shares []quota.Share
	for _, a := range r.Allocations {
		if !a.AdminAccess {
			shares = append(shares, a.share())
		}
	}
	return shares
}

func (a allocation) share() quota.Share {
	s := quota.Share{GPU: a.GPU, Limits: a.Limits}
	if p := a.Partition; p != nil {
		s.Partition = &quota.Partition{Name: a.Device, Placement: p.Placement, MemoryBytes: p.MemoryBytes}
	}
	return s
}

// render is what the record's containers shall see. It refuses names that must not become part of a path.
func (r record) render(n node) (cdi.Claim, error) {
	claim := cdi.Claim{UID: string(r.UID), Common: n.common}
	for _, a := range r.Allocations {
		uuid, err := n.uuid(a)
		if err != nil {
			return cdi.Claim{}, err
		}
		edits, ok := n.edits[uuid]
		if !ok {
			return cdi.Claim{}, fmt.Errorf("the device nodes of %s are not known: see the plugin's log", a.Device)
		}
		device := a.cdiDevice(uuid)
		device.Edits = edits
		claim.Devices = append(claim.Devices, device)
	}
	return claim, claim.Validate()
}

// validate refuses names that must not become part of a path, before anything is made that the claim's files name.
func (r record) validate() error {
	claim := cdi.Claim{UID: string(r.UID)}
	for _, a := range r.Allocations {
		claim.Devices = append(claim.Devices, a.cdiDevice(a.GPU))
	}
	return claim.Validate()
}

// cdiDevice is the allocation without the edits of its GPU or partition, whose UUID is given.
func (a allocation) cdiDevice(uuid string) cdi.Device {
	device := cdi.Device{Request: a.Request, ID: a.id()}
	if a.limited() {
		device.Quota = &cdi.Quota{
			GPU:         uuid,
			MemoryBytes: a.Limits.MemoryBytes,
			CorePercent: a.Limits.CorePercent,
			CorePolicy:  string(a.Limits.CorePolicy),
			Priority:    a.Limits.Priority,
		}
	}
	return device
}

// prepared is what the kubelet is told. What is offered tells no UUID of a partition that is made when it is needed; what
// is there now does.
func (r record) prepared(offered, present node) []kubeletplugin.Device {
	devices := make([]kubeletplugin.Device, 0, len(r.Allocations))
	for _, a := range r.Allocations {
		device := kubeletplugin.Device{
			Requests:     []string{a.Request},
			PoolName:     a.Pool,
			DeviceName:   a.Device,
			CDIDeviceIDs: []string{cdi.QualifiedName(string(r.UID), a.cdiDevice(a.GPU))},
			Metadata:     &kubeletplugin.DeviceMetadata{Attributes: map[string]resourceapi.DeviceAttribute{}},
		}
		if a.ShareID != "" {
			device.ShareID = ptr.To(a.ShareID)
		}
		for name, value := range offered.attributes(a.Device) {
			device.Metadata.Attributes[string(name)] = value
		}
		if uuid, err := present.uuid(a); err == nil {
			device.Metadata.Attributes[string(v1alpha1.AttributeUUID)] = resourceapi.DeviceAttribute{StringValue: ptr.To(uuid)}
		}
		devices = append(devices, device)
	}
	return devices
}
