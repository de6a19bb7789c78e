package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ShareQuota limits what the claims of its namespace may have of GPUs. Several in one namespace must all be kept.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Memory Used",type=string,JSONPath=`.status.used.memory`
// +kubebuilder:printcolumn:name="Memory Hard",type=string,JSONPath=`.spec.hard.memory`
// +kubebuilder:printcolumn:name="Cores Used",type=integer,JSONPath=`.status.used.cores`
// +kubebuilder:printcolumn:name="Cores Hard",type=integer,JSONPath=`.spec.hard.cores`
// +kubebuilder:printcolumn:name="Shares Used",type=integer,JSONPath=`.status.used.shares`
// +kubebuilder:printcolumn:name="Shares Hard",type=integer,JSONPath=`.spec.hard.shares`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ShareQuota struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ShareQuotaSpec   `json:"spec"`
	Status ShareQuotaStatus `json:"status,omitempty"`
}

// ShareQuotaSpec is what an administrator allows.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.largest) || has(self.deviceClasses) || has(self.hard)",message="limits nothing: set largest, deviceClasses or hard"
type ShareQuotaSpec struct {
	// Largest bounds each single share.
	// +optional
	Largest *LargestShare `json:"largest,omitempty"`

	// DeviceClasses lists the classes of this driver that claims may name. Default: all. Classes of other drivers are left alone.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	DeviceClasses []string `json:"deviceClasses,omitempty"`

	// Hard bounds what all claims of the namespace have together, those that wait for a device included.
	// +optional
	Hard *HardLimits `json:"hard,omitempty"`
}

// LargestShare is the most that one share may have.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.memory) || has(self.cores)",message="limits nothing: set memory or cores"
type LargestShare struct {
	// Memory is in bytes, as a quantity, 1Mi at least. A claim that asks for no memory has a whole device, which is refused where this is set.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('1Mi')) >= 0",message="want a whole number of bytes, 1Mi at least"
	Memory *resource.Quantity `json:"memory,omitempty"`

	// Cores is in percent of a device's time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Cores *int64 `json:"cores,omitempty"`
}

// HardLimits are what a namespace may have in all.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.memory) || has(self.cores) || has(self.shares)",message="limits nothing: set memory, cores or shares"
type HardLimits struct {
	// Memory of devices is in bytes, as a quantity.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && !quantity(string(self)).isLessThan(quantity('0'))",message="want a whole number of bytes, 0 at least"
	Memory *resource.Quantity `json:"memory,omitempty"`

	// Cores are in percent of one device's time: 250 are two devices and a half. A share that asks for none counts none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Cores *int64 `json:"cores,omitempty"`

	// Shares are counted one for each device that a claim has or asks for, whole ones included.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Shares *int64 `json:"shares,omitempty"`
}

// ShareQuotaStatus is written by the controller alone: whoever else may write it may lift the limits.
//
// +kubebuilder:object:generate=true
type ShareQuotaStatus struct {
	// Hard is spec.hard as it was last looked at.
	// +optional
	Hard *HardLimits `json:"hard,omitempty"`

	// Used is what the claims of the namespace count for together, reservations included.
	// +optional
	Used *ShareAmounts `json:"used,omitempty"`

	// Reservations are claims that were let in and not yet seen among those that are stored.
	// +optional
	// +listType=map
	// +listMapKey=uid
	Reservations []ShareReservation `json:"reservations,omitempty"`

	// Conditions: Exceeded is true while the namespace has more than spec.hard allows.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionExceeded is true while a namespace has more than its ShareQuota allows: by claims that were let in while the
// controller was down or before there was a quota.
const ConditionExceeded = "Exceeded"

// ShareAmounts are what claims count for.
//
// +kubebuilder:object:generate=true
type ShareAmounts struct {
	// Memory of devices, in bytes.
	Memory resource.Quantity `json:"memory"`
	// Cores in percent of one device's time.
	Cores int64 `json:"cores"`
	// Shares is how many devices, whole or in part.
	Shares int64 `json:"shares"`
}

// ShareReservation is what a claim counts for from when it was let in until it is seen.
//
// +kubebuilder:object:generate=true
type ShareReservation struct {
	// UID of the claim.
	UID types.UID `json:"uid"`
	// Name of the claim.
	Name string `json:"name"`

	ShareAmounts `json:",inline"`

	// Time at which it was made. It ends some time after no claim of that UID was found.
	Time metav1.Time `json:"time"`
}

// ShareQuotaList is a list of ShareQuota.
//
// +kubebuilder:object:root=true
type ShareQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ShareQuota `json:"items"`
}
