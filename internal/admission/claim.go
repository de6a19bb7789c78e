package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// ask is a request of a claim, or one of a request's alternatives.
type ask struct {
	name      string // as constraints and configs write it: gpu, or gpu/large
	request   int
	path      *field.Path
	className string
	selectors []resourceapi.DeviceSelector
	derived   []resourceapi.DeviceDerivedAttribute
	capacity  **resourceapi.CapacityRequirements
	monitors  bool // an administrator's access, which takes nothing

	class    *class
	compiled []*selector
	amount   v1alpha1.Request
	sound    bool // nothing is wrong with it, so that it can be held against the devices
}

// asksOf lists what a claim asks, in its order.
func asksOf(spec *resourceapi.ResourceClaimSpec, path *field.Path) []*ask {
	var all []*ask
	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		at := path.Child("devices", "requests").Index(i)
		if e := request.Exactly; e != nil {
			all = append(all, &ask{
				name: request.Name, request: i, path: at.Child("exactly"), className: e.DeviceClassName, selectors: e.Selectors,
				derived: e.DerivedAttributes, capacity: &e.Capacity, monitors: ptr.Deref(e.AdminAccess, false),
			})
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			all = append(all, &ask{
				name: request.Name + "/" + sub.Name, request: i, path: at.Child("firstAvailable").Index(j), className: sub.DeviceClassName,
				selectors: sub.Selectors, derived: sub.DerivedAttributes, capacity: &sub.Capacity,
			})
		}
	}
	return all
}

// named says whether a list of requests, of a constraint or a config, includes this one. An empty list is all.
func (a *ask) named(requests []string) bool {
	parent, _, _ := strings.Cut(a.name, "/")
	return len(requests) == 0 || slices.Contains(requests, a.name) || slices.Contains(requests, parent)
}

// ours says whether a request is for devices of this driver.
func (a *ask) ours() bool {
	if !a.class.there {
		return namedAsOurs(a.className) || mention(a.selectors)
	}
	return a.class.ours
}

// oursIn finds the requests for devices of this driver, but for those of administrators.
func (c *Checker) oursIn(ctx context.Context, spec *resourceapi.ResourceClaimSpec, path *field.Path) ([]*ask, error) {
	var ours []*ask
	classes := map[string]*class{}
	for _, a := range asksOf(spec, path) {
		if classes[a.className] == nil {
			read, err := c.class(ctx, a.className)
			if err != nil {
				return nil, err
			}
			classes[a.className] = read
		}
		a.class = classes[a.className]
		if a.ours() && !a.monitors {
			ours = append(ours, a)
		}
	}
	return ours, nil
}

// Claim checks the spec of a claim, or that in a template, where path is spec.spec. Findings are good whatever the error,
// which says that the cluster could not be read and so not all was checked.
func (c *Checker) Claim(ctx context.Context, spec *resourceapi.ResourceClaimSpec, path *field.Path) (Findings, error) {
	var f Findings
	published, unread := c.cluster.Slices(ctx)
	devices, done := c.summarize(published).fleet(ctx)
	defer done()
	known := devices.names
	asks, err := c.oursIn(ctx, spec, path)
	for _, a := range asks {
		c.checkAsk(&f, a, known)
	}
	checkConstraints(&f, spec.Devices.Constraints, asks, known, path.Child("devices", "constraints"))
	checkConfigs(&f, spec, asks, path.Child("devices"))
	if err = errors.Join(err, unread); err == nil {
		devices.claim(&f, asks)
	}
	return f, err
}

func (c *Checker) checkAsk(f *Findings, a *ask, known names) {
	before := len(f.Errors)
	c.checkSelectors(f, a.selectors, known, a.path.Child("selectors"))
	for i, d := range a.derived {
		c.checkExpression(f, d.Expression, true, known, a.path.Child("derivedAttributes").Index(i).Child("expression"))
	}
	a.checkCapacity(f, known)
	if !a.class.there {
		f.warn(a.path.Child("deviceClassName"), fmt.Sprintf("there is no device class %q: pods wait until there is", excerpt(a.className)))
	}
	if len(a.class.problems) > 0 {
		f.warn(a.path.Child("deviceClassName"), fmt.Sprintf("nodes refuse what device class %q says: %s", a.className, a.class.problemsInOneLine()))
	}
	a.compiled = c.selectors.all(a.selectors)
	a.sound = len(f.Errors) == before && a.class.there
}

func (a *ask) checkCapacity(f *Findings, known names) {
	path := a.path.Child("capacity", "requests")
	requests := ptr.Deref(*a.capacity, resourceapi.CapacityRequirements{}).Requests
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		q := requests[name]
		if problem := known.capacityProblem(name); problem != "" {
			f.add(field.Invalid(path.Key(excerpt(string(name))), q.String(), problem))
		} else if name != v1alpha1.CapacityMemory && name != v1alpha1.CapacityCores {
			if n, whole := v1alpha1.WholeNumber(q); !whole || n < 0 {
				f.add(field.Invalid(path.Key(string(name)), q.String(), "want a whole number, 0 or more"))
			}
		}
	}
	amount, errs := v1alpha1.ParseRequest(requests, path)
	f.add(errs...)
	if len(errs) > 0 {
		return
	}
	a.amount = amount
	for _, parameters := range a.class.parameters {
		f.add(parameters.RequestBounds(amount, path)...)
	}
}

// checkConstraints looks for attributes that no device has: with those a claim is never allocated. A claim's own derived
// attributes may have any name.
func checkConstraints(f *Findings, constraints []resourceapi.DeviceConstraint, asks []*ask, known names, path *field.Path) {
	for i, constraint := range constraints {
		attribute, at := constraint.MatchAttribute, path.Index(i).Child("matchAttribute")
		if attribute == nil {
			attribute, at = constraint.DistinctAttribute, path.Index(i).Child("distinctAttribute")
		}
		if attribute == nil {
			continue
		}
		name, ours := strings.CutPrefix(string(*attribute), v1alpha1.DriverName+"/")
		meant := slices.ContainsFunc(asks, func(a *ask) bool { return a.named(constraint.Requests) && !a.derives(*attribute) })
		if problem := known.problem(reference{name: name}); ours && meant && problem != "" {
			f.add(field.Invalid(at, excerpt(string(*attribute)), problem))
		}
	}
}

func (a *ask) derives(name resourceapi.FullyQualifiedName) bool {
	return slices.ContainsFunc(a.derived, func(d resourceapi.DeviceDerivedAttribute) bool { return d.Name == name })
}

// checkConfigs decodes the parameters of this driver and holds them against what the classes let claims set.
func checkConfigs(f *Findings, spec *resourceapi.ResourceClaimSpec, asks []*ask, path *field.Path) {
	decoded := map[int]*v1alpha1.ShareConfig{}
	for i, config := range spec.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != v1alpha1.DriverName {
			continue
		}
		at := path.Child("config").Index(i)
		named := checkRequestNames(f, config.Requests, spec, at.Child("requests"))
		share, errs := v1alpha1.DecodeShareConfig(config.Opaque.Parameters.Raw, at.Child("opaque", "parameters"))
		f.add(errs...)
		if len(errs) == 0 {
			decoded[i] = share
		}
		if named && !slices.ContainsFunc(asks, func(a *ask) bool { return a.named(config.Requests) }) {
			f.warn(at, "has no effect: no request that it is for gets shares of "+v1alpha1.DriverName)
		}
	}
	for _, a := range asks {
		if a.class.there && len(a.class.problems) == 0 {
			f.add(a.merge(spec.Devices.Config, decoded, path.Child("config"))...)
		}
	}
}

func (a *ask) merge(configs []resourceapi.DeviceClaimConfiguration, decoded map[int]*v1alpha1.ShareConfig, path *field.Path) field.ErrorList {
	var all []*v1alpha1.ShareConfig
	var paths []*field.Path
	for i, config := range configs {
		if decoded[i] != nil && a.named(config.Requests) {
			all, paths = append(all, decoded[i]), append(paths, path.Index(i).Child("opaque", "parameters"))
		}
	}
	_, errs := v1alpha1.Merge(a.class.parameters, all, paths)
	return errs
}

// checkRequestNames says whether the claim has all requests that a config names.
func checkRequestNames(f *Findings, requests []string, spec *resourceapi.ResourceClaimSpec, path *field.Path) bool {
	all := true
	for i, name := range requests {
		there := slices.ContainsFunc(spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
			return r.Name == name || slices.ContainsFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool { return r.Name+"/"+s.Name == name })
		})
		if !there {
			f.add(field.Invalid(path.Index(i), excerpt(name), "the claim has no such request"))
			all = false
		}
	}
	return all
}
