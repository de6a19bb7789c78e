package v1alpha1

import (
	"cmp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Merge takes the parameters of classes and of a claim together, in the order in which they apply: what comes later wins.
// A claim may set what every class lets it set. paths are those of the claim's parameters.
func Merge(classes []*ShareClass, configs []*ShareConfig, paths []*field.Path) (Settings, field.ErrorList) {
	settings := Settings{CorePolicy: CoreFixed, Enforcement: EnforcePreload}
	for _, class := range classes {
		settings.CorePolicy = cmp.Or(class.CorePolicy, settings.CorePolicy)
		settings.Enforcement = cmp.Or(class.Enforcement, settings.Enforcement)
	}
	var errs field.ErrorList
	for i, config := range configs {
		if config.CorePolicy != "" && !maySet(classes, FieldCorePolicy) {
			errs = append(errs, field.Forbidden(paths[i].Child(FieldCorePolicy), "the device class does not let claims set it; leave it out"))
		}
		if config.Enforcement != "" && !maySet(classes, FieldEnforcement) {
			errs = append(errs, field.Forbidden(paths[i].Child(FieldEnforcement), "the device class does not let claims set it; leave it out"))
		}
		settings.CorePolicy = cmp.Or(config.CorePolicy, settings.CorePolicy)
		settings.Enforcement = cmp.Or(config.Enforcement, settings.Enforcement)
	}
	return settings, errs
}

// maySet says whether claims may set a field. Where no class says, they may set the core policy.
func maySet(classes []*ShareClass, name string) bool {
	for _, class := range classes {
		if !slices.Contains(ptr.Deref(class.ClaimsMaySet, []string{FieldCorePolicy}), name) {
			return false
		}
	}
	return len(classes) > 0 || name == FieldCorePolicy
}

// Bounds returns what of an amount of memory, in bytes, and of cores, in percent, is out of the class's bounds.
func (c *ShareClass) Bounds(memory uint64, cores int, path *field.Path) (errs field.ErrorList) {
	if b := c.Memory; b != nil {
		has := resource.NewQuantity(int64(memory), resource.BinarySI)
		if b.Min != nil && has.Cmp(*b.Min) < 0 {
			errs = append(errs, field.Invalid(path.Key(string(CapacityMemory)), has.String(), atLeast(b.Min.String())))
		}
		if b.Max != nil && has.Cmp(*b.Max) > 0 {
			errs = append(errs, field.Invalid(path.Key(string(CapacityMemory)), has.String(), atMost(b.Max.String())))
		}
	}
	return append(errs, c.coreBounds(cores, path)...)
}

func (c *ShareClass) coreBounds(cores int, path *field.Path) (errs field.ErrorList) {
	b := c.Cores
	if b == nil {
		return nil
	}
	if b.Min != nil && cores < *b.Min {
		errs = append(errs, field.Invalid(path.Key(string(CapacityCores)), cores, atLeast(strconv.Itoa(*b.Min))))
	}
	if b.Max != nil && cores > *b.Max {
		errs = append(errs, field.Invalid(path.Key(string(CapacityCores)), cores, atMost(strconv.Itoa(*b.Max))))
	}
	return errs
}

func atLeast(bound string) string { return "the device class asks for at least " + bound }
func atMost(bound string) string  { return "the device class allows at most " + bound }
