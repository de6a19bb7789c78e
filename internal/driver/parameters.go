package driver

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/quota"
)

// parameters are what class and claim say of one allocation result. They travel in the allocation, so that what a class
// said when the claim was allocated still holds.
type parameters struct {
	classes  []*v1alpha1.ShareClass
	settings v1alpha1.Settings
}

func parametersOf(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) (parameters, error) {
	var p parameters
	var configs []*v1alpha1.ShareConfig
	var paths []*field.Path
	var errs field.ErrorList
	for _, config := range resourceclaim.ConfigForResult(claim.Status.Allocation.Devices.Config, result) {
		if config.Opaque.Driver != v1alpha1.DriverName {
			continue
		}
		if config.Source == resourceapi.AllocationConfigSourceClass {
			class, problems := v1alpha1.DecodeShareClass(config.Opaque.Parameters.Raw, field.NewPath("class parameters"))
			errs = append(errs, problems...)
			p.classes = append(p.classes, class)
			continue
		}
		path := field.NewPath("claim parameters")
		decoded, problems := v1alpha1.DecodeShareConfig(config.Opaque.Parameters.Raw, path)
		errs = append(errs, problems...)
		configs, paths = append(configs, decoded), append(paths, path)
	}
	if len(errs) > 0 {
		return p, fmt.Errorf("devices.config: %w", errs.ToAggregate())
	}
	p.settings, errs = v1alpha1.Merge(p.classes, configs, paths)
	if len(errs) > 0 {
		return p, fmt.Errorf("devices.config: %w", errs.ToAggregate())
	}
	return p, nil
}

// apply holds what was granted to the bounds of the classes, and adds what they and the claim say of it.
func (p parameters) apply(limits *quota.Limits) error {
	var errs field.ErrorList
	for _, class := range p.classes {
		errs = append(errs, class.Bounds(limits.MemoryBytes, limits.CorePercent, field.NewPath("consumedCapacity"))...)
	}
	if !limits.Whole {
		limits.CorePolicy = p.settings.CorePolicy
		limits.Unenforced = p.settings.Enforcement == v1alpha1.EnforceNone
	}
	return errs.ToAggregate()
}
