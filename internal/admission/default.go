package admission

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// Default fills in what the classes of a claim's requests set as default, where a request does not say. Of a class with
// several parameters the last that says counts.
func (c *Checker) Default(ctx context.Context, spec *resourceapi.ResourceClaimSpec) error {
	asks, err := c.oursIn(ctx, spec, nil)
	if err != nil {
		return err
	}
	for _, a := range asks {
		defaults := map[resourceapi.QualifiedName]resource.Quantity{}
		for _, p := range a.class.parameters {
			if p.Memory != nil && p.Memory.Default != nil {
				defaults[v1alpha1.CapacityMemory] = *p.Memory.Default
			}
			if p.Cores != nil && p.Cores.Default != nil {
				defaults[v1alpha1.CapacityCores] = *resource.NewQuantity(int64(*p.Cores.Default), resource.DecimalSI)
			}
		}
		for name, amount := range defaults {
			a.fill(name, amount)
		}
	}
	return nil
}

func (a *ask) fill(name resourceapi.QualifiedName, amount resource.Quantity) {
	if *a.capacity == nil {
		*a.capacity = &resourceapi.CapacityRequirements{}
	}
	requests := &(*a.capacity).Requests
	if *requests == nil {
		*requests = map[resourceapi.QualifiedName]resource.Quantity{}
	}
	if _, said := (*requests)[name]; !said {
		(*requests)[name] = amount
	}
}
