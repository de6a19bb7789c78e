package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// class is a device class as the checks see it. The zero value stands for one that is not there.
type class struct {
	name       string
	there      bool
	ours       bool // its devices are this driver's
	selectors  []*selector
	parameters []*v1alpha1.ShareClass // those without problems
	problems   field.ErrorList
}

func (c *Checker) class(ctx context.Context, name string) (*class, error) {
	object, err := c.cluster.Class(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read device class %q: %w", name, err)
	}
	if object == nil {
		return &class{name: name}, nil
	}
	return c.read(ctx, object), nil
}

func (c *Checker) read(ctx context.Context, object *resourceapi.DeviceClass) *class {
	read := &class{name: object.Name, there: true, selectors: c.selectors.all(object.Spec.Selectors)}
	foreign := false
	for i, config := range object.Spec.Config {
		if config.Opaque == nil {
			continue
		}
		if config.Opaque.Driver != v1alpha1.DriverName {
			foreign = true
			continue
		}
		path := field.NewPath("spec", "config").Index(i).Child("opaque", "parameters")
		decoded, errs := v1alpha1.DecodeShareClass(config.Opaque.Parameters.Raw, path)
		read.problems = append(read.problems, errs...)
		if len(errs) == 0 {
			read.parameters = append(read.parameters, decoded)
		}
	}
	onlyOurs := !foreign && len(read.parameters)+len(read.problems) > 0
	read.ours = Concerns(object) && (onlyOurs || !read.others(ctx))
	return read
}

// others says whether a class may give out devices of other drivers too: whether it takes a device without attributes
// that is of some driver, or of one that it names.
func (c *class) others(ctx context.Context) bool {
	drivers := []string{"other.example.com"}
	for _, s := range c.selectors {
		drivers = append(drivers, s.literals...)
	}
	return slices.ContainsFunc(drivers, func(driver string) bool {
		if driver == v1alpha1.DriverName {
			return false
		}
		matches, _, err := match(ctx, c.selectors, dracel.Device{Driver: driver})
		return err == nil && matches
	})
}

// Class checks a class. What it finds of the cluster's devices are warnings: they come and go.
func (c *Checker) Class(ctx context.Context, object *resourceapi.DeviceClass) Findings {
	var f Findings
	if !Concerns(object) {
		return f
	}
	class := c.read(ctx, object)
	f.add(class.problems...)
	published, err := c.cluster.Slices(ctx)
	if err != nil {
		f.warn(nil, fmt.Sprintf("not checked against the GPUs in the cluster: %v", err))
	}
	devices, done := c.summarize(published).fleet(ctx)
	defer done()
	path := field.NewPath("spec", "selectors")
	c.checkSelectors(&f, object.Spec.Selectors, devices.names, path)
	class.warnOfExtendedResource(&f, ptr.Deref(object.Spec.ExtendedResourceName, ""))
	if len(f.Errors) > 0 {
		return f
	}
	if _, i, err := match(ctx, class.selectors, dracel.Device{Driver: "other.example.com"}); err != nil {
		f.warn(path.Index(i), fmt.Sprintf("fails on devices of other drivers, which keeps pods pending: %s; begin with device.driver == '%s' &&", firstLine(err.Error()), v1alpha1.DriverName))
	} else if class.others(ctx) && len(class.parameters) > 0 {
		f.warn(path, fmt.Sprintf("devices of other drivers match too, on which the parameters have no effect; begin with device.driver == '%s' &&", v1alpha1.DriverName))
	}
	devices.class(&f, class, field.NewPath("spec"))
	return f
}

// checkSelectors adds what is wrong with expressions: those that do not compile, and names that no device has.
func (c *Checker) checkSelectors(f *Findings, all []resourceapi.DeviceSelector, known names, path *field.Path) {
	for i, one := range all {
		if one.CEL != nil {
			c.checkExpression(f, one.CEL.Expression, false, known, path.Index(i).Child("cel", "expression"))
		}
	}
}

func (c *Checker) checkExpression(f *Findings, expression string, derived bool, known names, path *field.Path) {
	compiled := c.selectors.get(expression, derived)
	if compiled.problem != "" {
		f.add(field.Invalid(path, excerpt(expression), compiled.problem))
	}
	for _, name := range compiled.names {
		if problem := known.problem(name); problem != "" {
			f.add(field.Invalid(path, excerpt(name.name), problem))
		}
	}
}

// warnOfExtendedResource tells what surprises those who ask for a class's devices as for those of a device plugin: the
// scheduler makes their claims, and asks for no amounts in them.
func (c *class) warnOfExtendedResource(f *Findings, name string) {
	if name == "" {
		return
	}
	path := field.NewPath("spec", "extendedResourceName")
	shares := slices.ContainsFunc(c.selectors, func(s *selector) bool { return s.shared })
	if name == "nvidia.com/gpu" && shares {
		f.warn(path, "each share of a GPU would be charged to the quota of nvidia.com/gpu as a GPU: leave it to a class of whole GPUs")
	}
	for _, p := range c.parameters {
		if b := p.Memory; b != nil && b.Default != nil {
			f.warn(path, "pods that ask for "+name+" get whole GPUs: memory.default is for claims that people make")
		} else if b != nil && b.Max != nil {
			f.warn(path, "pods that ask for "+name+" ask for whole GPUs, which memory.max refuses")
		}
	}
}

func (c *class) problemsInOneLine() string {
	var all []string
	for _, problem := range c.problems {
		all = append(all, problem.Error())
	}
	return strings.Join(all, "; ")
}
