// Package v1alpha1 is Aliquot's contract with its users: the names of the driver, of the attributes and capacities
// that its devices carry, the parameters that claims may give, and the limits of a namespace. It does not know GPUs, nodes
// or Kubernetes clients.
//
// +groupName=gpu.aliquot.dev
package v1alpha1

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// DriverName names the driver and is the domain of its attributes and capacities.
const DriverName = "gpu.aliquot.dev"

// Attributes of a device. Users' CEL reads them as device.attributes["gpu.aliquot.dev"].<name>.
const (
	AttributeType              resourceapi.QualifiedName = "type"
	AttributeUUID              resourceapi.QualifiedName = "uuid"
	AttributeIndex             resourceapi.QualifiedName = "index"
	AttributeProductName       resourceapi.QualifiedName = "productName"
	AttributeBrand             resourceapi.QualifiedName = "brand"
	AttributeArchitecture      resourceapi.QualifiedName = "architecture"
	AttributeComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	AttributeDriverVersion     resourceapi.QualifiedName = "driverVersion"
	AttributeCUDADriverVersion resourceapi.QualifiedName = "cudaDriverVersion"

	// Of partitions only. A partition that is made when it is needed has no UUID before.
	AttributeProfile     resourceapi.QualifiedName = "profile"
	AttributeParentUUID  resourceapi.QualifiedName = "parentUUID"
	AttributeParentIndex resourceapi.QualifiedName = "parentIndex"
)

// The values of AttributeType.
const (
	TypeGPU = "gpu" // a GPU, whole or shared
	TypeMIG = "mig" // a partition of a GPU, whole or shared
)

// Capacities of a device. They are published, and must be requested, without a domain: the scheduler of Kubernetes 1.37
// compares capacity names literally (kubernetes/kubernetes#140650).
const (
	CapacityMemory resourceapi.QualifiedName = "memory" // bytes of device memory
	CapacityCores  resourceapi.QualifiedName = "cores"  // percent of the device's time, 0 to 100; 0 is best effort

	// Of partitions only: what hardware gives them.
	CapacityMultiprocessors resourceapi.QualifiedName = "multiprocessors"
	CapacityCopyEngines     resourceapi.QualifiedName = "copyEngines"
	CapacityDecoders        resourceapi.QualifiedName = "decoders"
	CapacityEncoders        resourceapi.QualifiedName = "encoders"
	CapacityJPEGEngines     resourceapi.QualifiedName = "jpegEngines"
	CapacityOFAEngines      resourceapi.QualifiedName = "ofaEngines"
)

// Attributes are all that a device may have in the driver's domain.
func Attributes() []resourceapi.QualifiedName {
	return []resourceapi.QualifiedName{
		AttributeType, AttributeUUID, AttributeIndex, AttributeProductName, AttributeBrand, AttributeArchitecture,
		AttributeComputeCapability, AttributeDriverVersion, AttributeCUDADriverVersion,
		AttributeProfile, AttributeParentUUID, AttributeParentIndex,
	}
}

// Capacities are all that a device may have.
func Capacities() []resourceapi.QualifiedName {
	return []resourceapi.QualifiedName{
		CapacityMemory, CapacityCores,
		CapacityMultiprocessors, CapacityCopyEngines, CapacityDecoders, CapacityEncoders, CapacityJPEGEngines, CapacityOFAEngines,
	}
}

// TaintReconfiguring is the key of the taint that keeps new claims from a GPU whose partitions an administrator is
// changing.
const TaintReconfiguring = DriverName + "/reconfiguring"

// TaintUnhealthy is the key of the taint of a GPU that something is wrong with. Its value says what: "xid-79", "lost".
const TaintUnhealthy = DriverName + "/unhealthy"

// MemoryStep is the unit in which memory is shared out, in bytes: requests are rounded up to it.
const MemoryStep = 1 << 20

// AllCores is the value of CapacityCores that stands for the whole device, in percent.
const AllCores = 100

// Consumed returns what an allocation consumed of a capacity, and whether it says so at all. Schedulers spell the name
// as the ResourceSlice did or with the driver's domain before it; both are understood.
func Consumed(consumed map[resourceapi.QualifiedName]resource.Quantity, name resourceapi.QualifiedName) (resource.Quantity, bool) {
	if q, ok := consumed[name]; ok {
		return q, true
	}
	q, ok := consumed[DriverName+"/"+name]
	return q, ok
}
