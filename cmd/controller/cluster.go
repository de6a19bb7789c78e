package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/admission"
)

// cluster answers from the manager's cache, whose slices are this driver's alone.
type cluster struct {
	cache   client.Reader
	changes atomic.Int64 // of slices
	last    atomic.Pointer[listed]
}

// listed are the slices after so many changes.
type listed struct {
	changes int64
	slices  []resourceapi.ResourceSlice
}

var _ admission.Cluster = (*cluster)(nil)

// newCluster must be called before the cache starts.
func newCluster(ctx context.Context, cached cache.Cache) (*cluster, error) {
	c := &cluster{cache: cached}
	informer, err := cached.GetInformer(ctx, &resourceapi.ResourceSlice{})
	if err != nil {
		return nil, fmt.Errorf("watch ResourceSlices: %w", err)
	}
	changed := func(any) { c.changes.Add(1) }
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }, DeleteFunc: changed,
	})
	return c, err
}

// Class implements admission.Cluster.
func (c *cluster) Class(ctx context.Context, name string) (*resourceapi.DeviceClass, error) {
	var class resourceapi.DeviceClass
	if err := c.cache.Get(ctx, client.ObjectKey{Name: name}, &class); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &class, nil
}

// Slices implements admission.Cluster. They are listed once after each change: the cache copies half a kilobyte a slice, and
// of a large cluster's that takes longer than all the rest of a review. A change is told after the cache has it, so what is
// listed may be newer than it is said to be but never older, and is listed again.
func (c *cluster) Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	changes := c.changes.Load()
	if last := c.last.Load(); last != nil && last.changes == changes {
		return last.slices, nil
	}
	slices, err := uncounted{c}.Slices(ctx)
	if err != nil {
		return nil, err
	}
	c.last.Store(&listed{changes: changes, slices: slices})
	return slices, nil
}

// uncounted lists slices each time, for reconcilers: one may be called for a change before it was counted, and is not
// called again.
type uncounted struct{ *cluster }

// Slices implements admission.Cluster.
func (c uncounted) Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	var list resourceapi.ResourceSliceList
	err := c.cache.List(ctx, &list, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// ours says whether a class is of this driver. One that is not there is judged by its name.
func (c *cluster) ours(name string) bool {
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
