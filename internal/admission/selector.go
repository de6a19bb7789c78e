package admission

import (
	"context"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// selector is a compiled expression and what it reads.
type selector struct {
	problem  string // why it does not compile, or nothing
	program  dracel.CompilationResult
	names    []reference
	literals []string
	shared   bool // it asks whether a device may be allocated many times
}

// reference is an attribute or a capacity of this driver's domain.
type reference struct {
	capacity bool
	name     string
}

// selectors compiles expressions, each once.
type selectors struct {
	mutex    sync.Mutex // held while compiling too: that is milliseconds, and the compiler is not known to be quick in parallel
	compiled *lru.Cache
}

// mostSelectors is a few times what clusters have of different expressions.
const mostSelectors = 1000

func newSelectors() *selectors {
	return &selectors{compiled: lru.New(mostSelectors)}
}

// get compiles as the scheduler does: expressions that are stored already may use what any feature gate allows. The API
// server itself has checked, with its own gates, whether a new expression is allowed
// (validateCELExpression of k8s.io/kubernetes/pkg/apis/resource/validation).
func (s *selectors) get(expression string, derived bool) *selector {
	key := expression
	if derived {
		key = "derived " + expression
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if found, ok := s.compiled.Get(key); ok {
		return found.(*selector)
	}
	compiled := compile(expression, derived)
	s.compiled.Add(key, compiled)
	return compiled
}

func compile(expression string, derived bool) *selector {
	if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
		return &selector{problem: "too long"}
	}
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	result := compiler.CompileCELExpression(expression, dracel.Options{DisableCostEstimation: true, DerivedAttribute: derived})
	if result.Error != nil {
		return &selector{problem: firstLine(result.Error.Detail)}
	}
	s := &selector{program: result}
	parsed, issues := result.Environment.Parse(expression)
	if issues.Err() != nil { // not after it was compiled
		return &selector{problem: firstLine(issues.Err().Error())}
	}
	s.walk(parsed.NativeRep().Expr(), nil)
	return s
}

// firstLine of an error of the compiler, without what says nothing: the others draw an arrow below the expression.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.Replace(strings.TrimPrefix(line, "compilation failed: "), "ERROR: <input>:", "at ", 1)
}

// all compiles those selectors that can be. Whoever asks has reported the others.
func (s *selectors) all(of []resourceapi.DeviceSelector) []*selector {
	var compiled []*selector
	for _, one := range of {
		if one.CEL == nil {
			continue
		}
		if c := s.get(one.CEL.Expression, false); c.problem == "" {
			compiled = append(compiled, c)
		}
	}
	return compiled
}

// match says whether all selectors match, as the scheduler does: a device that one of them left out is not shown to the
// next. failed is the index of the selector that cannot be evaluated on the device, which stops the scheduling of the pod.
func match(ctx context.Context, all []*selector, device dracel.Device) (matches bool, failed int, err error) {
	for i, s := range all {
		matches, _, err := s.program.DeviceMatches(ctx, device)
		if err != nil || !matches {
			return false, i, err
		}
	}
	return true, 0, nil
}

// visible is a device of this driver as CEL sees it.
func visible(d resourceapi.Device) dracel.Device {
	return dracel.Device{
		Driver: v1alpha1.DriverName, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	}
}
