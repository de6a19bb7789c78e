package main

import (
	"context"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/admission"
)

// cluster answers from the manager's cache, whose slices are this driver's alone.
type cluster struct {
	cache client.Reader
}

var _ admission.Cluster = cluster{}

// Class implements admission.Cluster.
func (c cluster) Class(ctx context.Context, name string) (*resourceapi.DeviceClass, error) {
	var class resourceapi.DeviceClass
	if err := c.cache.Get(ctx, client.ObjectKey{Name: name}, &class); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &class, nil
}

// Slices implements admission.Cluster.
func (c cluster) Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	var list resourceapi.ResourceSliceList
	err := c.cache.List(ctx, &list, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// ours says whether a class is of this driver. One that is not there is judged by its name.
func (c cluster) ours(name string) bool {
	var class resourceapi.DeviceClass
	switch err := c.cache.Get(context.Background(), client.ObjectKey{Name: name}, &class); {
	case err == nil:
		return admission.Concerns(&class)
	case apierrors.IsNotFound(err):
		return namedAsOurs(name)
	}
	return false
}

// namedAsOurs is how the webhooks' configuration tells classes of this driver.
func namedAsOurs(class string) bool {
	return strings.HasSuffix("."+class, "."+v1alpha1.DriverName)
}

// sent says whether the webhooks are asked about claims of a class.
func (f flags) sent(class string) bool {
	return namedAsOurs(class) || slices.Contains(f.deviceClasses, class)
}
