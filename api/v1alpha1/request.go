package v1alpha1

import (
	"fmt"
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Request is what a claim asks of each device that it gets for one of its requests.
type Request struct {
	// MemoryBytes, rounded up to MemoryStep as the scheduler does. 0 is all of the device.
	MemoryBytes uint64
	// CorePercent is 0 where the claim asks for none.
	CorePercent int
}

// mostMemory is the most that the scheduler can reckon with: it counts in thousandths of a byte, and gives up the pod
// where those do not fit (roundUpRange of k8s.io/dynamic-resource-allocation/structured/internal/incubating).
const mostMemory = math.MaxInt64/1000 - MemoryStep

// ParseRequest reads the amounts of memory and cores in capacity.requests, whose path is given. It returns everything
// that is wrong with them whatever the class: the scheduler would take 0 and less for the least there is, and pass every
// device over for too much. Other names are not looked at.
func ParseRequest(requests map[resourceapi.QualifiedName]resource.Quantity, path *field.Path) (Request, field.ErrorList) {
	var r Request
	var errs field.ErrorList
	if q, ok := requests[CapacityMemory]; ok {
		if problem := memoryProblem(q); problem != "" {
			errs = append(errs, field.Invalid(path.Key(string(CapacityMemory)), q.String(), problem))
		} else {
			r.MemoryBytes = (uint64(q.Value()) + MemoryStep - 1) / MemoryStep * MemoryStep
		}
	}
	if q, ok := requests[CapacityCores]; ok {
		cores, whole := WholeNumber(q)
		if !whole || cores < 0 || cores > AllCores {
			errs = append(errs, field.Invalid(path.Key(string(CapacityCores)), q.String(), fmt.Sprintf("want a whole percentage from 0 to %d", AllCores)))
		} else {
			r.CorePercent = int(cores)
		}
	}
	return r, errs
}

func memoryProblem(q resource.Quantity) string {
	switch {
	case q.CmpInt64(MemoryStep) < 0:
		return "ask for 1Mi at least, or leave it out for the whole GPU"
	case q.CmpInt64(mostMemory) > 0:
		return "no GPU has so much"
	case q.Cmp(*resource.NewMilliQuantity(q.MilliValue(), resource.DecimalSI)) != 0:
		return fmt.Sprintf("the scheduler cannot reckon with such a fraction of a byte: ask for %dMi", (q.Value()+MemoryStep-1)/MemoryStep)
	}
	return ""
}

// WholeNumber returns a quantity as an integer, and whether it is one that fits. Unlike Quantity.AsInt64 it takes 1.5Gi,
// which is kept as a decimal.
func WholeNumber(q resource.Quantity) (int64, bool) {
	n := q.Value()
	return n, q.CmpInt64(n) == 0
}

// RequestBounds returns what of a request is out of the class's bounds, in the words of Bounds. A request without memory
// gets all of the device, and so all of its cores unless it asks for some.
func (c *ShareClass) RequestBounds(r Request, path *field.Path) field.ErrorList {
	if r.MemoryBytes > 0 {
		return c.Bounds(r.MemoryBytes, r.CorePercent, path)
	}
	var errs field.ErrorList
	if b := c.Memory; b != nil && b.Max != nil {
		errs = append(errs, field.Required(path.Key(string(CapacityMemory)), atMost(b.Max.String())+", and a request without memory is for the whole GPU"))
	}
	if r.CorePercent > 0 {
		return append(errs, c.coreBounds(r.CorePercent, path)...)
	}
	if b := c.Cores; b != nil && b.Max != nil && *b.Max < AllCores {
		errs = append(errs, field.Required(path.Key(string(CapacityCores)), atMost(fmt.Sprint(*b.Max))+", and a request for neither memory nor cores is for the whole GPU"))
	}
	return errs
}
