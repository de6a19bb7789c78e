package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIVersion and the kinds of the parameters that this package knows.
const (
	APIVersion      = DriverName + "/v1alpha1"
	KindShareClass  = "ShareClass"
	KindShareConfig = "ShareConfig"
)

// CorePolicy says whether a share may use cores that others leave idle.
type CorePolicy string

// The core policies.
const (
	// CoreFixed holds a share to its cores even when the device is otherwise idle.
	CoreFixed CorePolicy = "Fixed"
	// CoreBurst lends a share what others leave idle.
	CoreBurst CorePolicy = "Burst"
)

// Enforcement says what holds a share to what it was granted.
type Enforcement string

// The kinds of enforcement.
const (
	// EnforcePreload holds a share by the preload library.
	EnforcePreload Enforcement = "Preload"
	// EnforceNone only counts a share: nothing holds its programs to it.
	EnforceNone Enforcement = "None"
)

// The fields that ShareClass.ClaimsMaySet can name.
const (
	FieldCorePolicy  = "corePolicy"
	FieldEnforcement = "enforcement"
)

// ShareClass is what an administrator sets for the devices that are allocated through a DeviceClass, in its
// spec.config[].opaque.parameters.
type ShareClass struct {
	metav1.TypeMeta `json:",inline"`

	// Memory bounds what a claim may have of a device's memory.
	Memory *MemoryBounds `json:"memory,omitempty"`
	// Cores bounds what a claim may have of a device's time.
	Cores *CoreBounds `json:"cores,omitempty"`
	// CorePolicy of shares whose claim sets none. Default: Fixed.
	CorePolicy CorePolicy `json:"corePolicy,omitempty"`
	// Enforcement of shares whose claim sets none. Default: Preload.
	Enforcement Enforcement `json:"enforcement,omitempty"`
	// ClaimsMaySet lists what a ShareConfig may set: corePolicy, enforcement. Default: corePolicy alone.
	ClaimsMaySet *[]string `json:"claimsMaySet,omitempty"`
}

// MemoryBounds are in bytes, as quantities.
type MemoryBounds struct {
	// Min is the least that a claim may have, 1Mi at least.
	Min *resource.Quantity `json:"min,omitempty"`
	// Max is the most that a claim may have. A claim that asks for no memory has all of the device, which is then refused unless there is a default.
	Max *resource.Quantity `json:"max,omitempty"`
	// Default is what a claim has that asks for no memory, whole Mi. It is filled into the claim when that is made.
	Default *resource.Quantity `json:"default,omitempty"`
}

// CoreBounds are in percent of a device's time, 0 to 100.
type CoreBounds struct {
	// Min is the least that a claim may have.
	Min *int `json:"min,omitempty"`
	// Max is the most that a claim may have. A whole device is 100.
	Max *int `json:"max,omitempty"`
	// Default is what a claim has that asks for no cores. It is filled into the claim when that is made.
	Default *int `json:"default,omitempty"`
}

// ShareConfig is what the author of a claim chooses, in its spec.devices.config[].opaque.parameters.
type ShareConfig struct {
	metav1.TypeMeta `json:",inline"`

	// CorePolicy of the share.
	CorePolicy CorePolicy `json:"corePolicy,omitempty"`
	// Enforcement of the share, where its class lets claims set it.
	Enforcement Enforcement `json:"enforcement,omitempty"`
}

// Settings are what class and claim together say of a share.
type Settings struct {
	CorePolicy  CorePolicy
	Enforcement Enforcement
}
