// Package admission says whether device classes and claims make sense before the scheduler sees them, and fills in what a
// class sets as default. It serves webhooks but knows no certificates, and it holds nobody to anything: the node does.
package admission

import (
	"context"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// Cluster is what the checks know of the cluster. Its lists come from a cache, cost nothing and are not changed.
type Cluster interface {
	// Class returns nil where there is no class of that name.
	Class(ctx context.Context, name string) (*resourceapi.DeviceClass, error)
	// Slices returns those of this driver. The same list, not an equal one, says that nothing changed.
	Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error)
}

// Findings are what is wrong with an object. Errors can never work; warnings do not work now, or surprise.
type Findings struct {
	Errors   field.ErrorList
	Warnings []string
}

// Checker checks classes and claims.
type Checker struct {
	cluster   Cluster
	selectors *selectors

	mutex     sync.Mutex // guards what follows
	published []resourceapi.ResourceSlice
	state     uint64 // of these, of which there is the summary
	summary   *summary
}

// New returns a checker. It keeps the expressions that it compiled, and a summary of the devices.
func New(cluster Cluster) *Checker {
	return &Checker{cluster: cluster, selectors: newSelectors()}
}

// Concerns says whether a class is about devices of this driver: it has parameters for it, or a selector that mentions it.
func Concerns(class *resourceapi.DeviceClass) bool {
	for _, config := range class.Spec.Config {
		if config.Opaque != nil && config.Opaque.Driver == v1alpha1.DriverName {
			return true
		}
	}
	return mention(class.Spec.Selectors)
}

func mention(selectors []resourceapi.DeviceSelector) bool {
	return slices.ContainsFunc(selectors, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && strings.Contains(s.CEL.Expression, v1alpha1.DriverName)
	})
}

// namedAsOurs says whether a class that is not there would be one of ours.
func namedAsOurs(class string) bool {
	return class == v1alpha1.DriverName || strings.HasSuffix(class, "."+v1alpha1.DriverName)
}

// mostFindings of one kind are told about one object: who reads more?
const mostFindings = 20

// add keeps each finding once. Two requests often have the same wrong with them.
func (f *Findings) add(errs ...*field.Error) {
	for _, err := range errs {
		same := func(other *field.Error) bool { return other.Error() == err.Error() }
		if len(f.Errors) < mostFindings && !slices.ContainsFunc(f.Errors, same) {
			f.Errors = append(f.Errors, err)
		}
	}
}

func (f *Findings) warn(path *field.Path, text string) {
	if path != nil {
		text = path.String() + ": " + text
	}
	if len(f.Warnings) < mostFindings && !slices.Contains(f.Warnings, text) {
		f.Warnings = append(f.Warnings, text)
	}
}
