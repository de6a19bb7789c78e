package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// fleet are the devices that there are now. What they cannot do is only warned of, since nodes come and go.
type fleet struct {
	ctx   context.Context // one check's: it ends the look at the devices early
	looks int             // beyond the first device of each kind
	*summary
}

// mostLooks are so many that all GPUs of a middling cluster are looked at for one that a claim names, and so few that the
// look takes milliseconds.
const mostLooks = 500

// ended says whether the look at the devices was given up, so that nothing can be said of those that were not seen.
func (f *fleet) ended() bool { return f.ctx.Err() != nil || f.looks > mostLooks }

// patience is how long a check looks at devices. A webhook has ten seconds by default, and all of this is only for warnings.
const patience = 2 * time.Second

// fleet returns the devices, and what ends the use of them.
func (s *summary) fleet(ctx context.Context) (*fleet, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	return &fleet{ctx: ctx, summary: s}, cancel
}

// class warns of a class that no device could serve now. A cluster without any GPU is being set up.
func (f *fleet) class(found *Findings, c *class, path *field.Path) {
	if len(f.kinds) == 0 {
		return
	}
	matching, failed := f.matching(f.kinds, c.selectors)
	switch {
	case failed.err != nil:
		found.warn(path.Child("selectors").Index(failed.selector), failed.text())
	case len(matching) == 0 && f.ended():
	case len(matching) == 0:
		found.warn(path.Child("selectors"), "no GPU in the cluster matches now")
	default:
		if largest, least := most(firsts(matching), v1alpha1.CapacityMemory), c.least(); largest != nil && least.Cmp(*largest) > 0 {
			found.warn(path.Child("config"), tooFew(v1alpha1.CapacityMemory, *largest)+", which asks for at least "+least.String())
		}
	}
}

// failure is a selector that cannot be evaluated on a device.
type failure struct {
	selector int
	on       member
	err      error
}

func (f failure) text() string {
	return fmt.Sprintf("fails on %s, which keeps pods pending: %s; an attribute that not all GPUs have needs .?name.orValue(...) or has(...)", f.on.place, firstLine(f.err.Error()))
}

// matching are the kinds that have a device which all selectors match, each from that device on.
func (f *fleet) matching(kinds []kind, all []*selector) ([]kind, failure) {
	var matching []kind
	var failed failure
	differ := readPlaces(all)
	for _, k := range kinds {
		for i, m := range k {
			if i > 0 {
				f.looks++
			}
			if f.ended() {
				return matching, failed
			}
			matches, at, err := match(f.ctx, all, m.visible)
			if err != nil && f.ctx.Err() == nil && failed.err == nil {
				failed = failure{selector: at, on: m, err: err}
			}
			if matches {
				matching = append(matching, k[i:])
			}
			if matches || !differ || err != nil {
				break
			}
		}
	}
	return matching, failed
}

// claim warns of what no device could hold even if nobody else used it. Of a request's alternatives one is enough.
func (f *fleet) claim(found *Findings, asks []*ask) {
	if len(f.kinds) == 0 {
		if len(asks) > 0 {
			found.warn(nil, "no node publishes GPUs now: pods with this claim wait until one does")
		}
		return
	}
	unheld, alternatives := map[int][]shortfall{}, map[int]int{}
	for _, a := range asks {
		alternatives[a.request]++
		if !a.sound {
			continue
		}
		why := f.look(found, a)
		if f.ended() {
			return
		}
		if why.text != "" {
			unheld[a.request] = append(unheld[a.request], why)
		}
	}
	for _, request := range slices.Sorted(maps.Keys(unheld)) {
		if len(unheld[request]) == alternatives[request] {
			for _, why := range unheld[request] {
				found.warn(why.path, why.text)
			}
		}
	}
}

// shortfall is why no device could hold a request.
type shortfall struct {
	path *field.Path
	text string
}

// look holds a request against the devices.
func (f *fleet) look(found *Findings, a *ask) shortfall {
	ofClass, failed := f.matching(f.kinds, a.class.selectors)
	if failed.err != nil {
		found.warn(a.path.Child("deviceClassName"), fmt.Sprintf("selector %d of device class %q %s", failed.selector, a.className, failed.text()))
	}
	if len(ofClass) == 0 {
		return shortfall{a.path.Child("deviceClassName"), fmt.Sprintf("no GPU in the cluster matches device class %q now", a.className)}
	}
	both, before := a.compiled, 0
	if readPlaces(a.class.selectors) { // others of a kind may not be of the class
		both, before = slices.Concat(a.class.selectors, a.compiled), len(a.class.selectors)
	}
	chosenKinds, failed := f.matching(ofClass, both)
	if failed.err != nil && failed.selector >= before {
		found.warn(a.path.Child("selectors").Index(failed.selector-before), failed.text())
	}
	chosen := firsts(chosenKinds)
	if len(chosen) == 0 {
		return shortfall{a.path.Child("selectors"), fmt.Sprintf("no GPU of device class %q in the cluster matches now", a.className)}
	}
	a.checkWhole(found, chosen)
	a.checkLeast(found, chosen)
	return a.shortfall(chosen)
}

// checkWhole finds a request for just the memory of some GPU, and no cores: that is the whole GPU (internal/quota), which
// has all cores.
func (a *ask) checkWhole(found *Findings, devices []member) {
	for _, m := range devices {
		if total, ok := m.total(v1alpha1.CapacityMemory); !ok || a.amount.CorePercent > 0 || total.CmpInt64(int64(a.amount.MemoryBytes)) != 0 {
			continue
		}
		for _, parameters := range a.class.parameters {
			for _, err := range parameters.Bounds(a.amount.MemoryBytes, v1alpha1.AllCores, a.path.Child("capacity", "requests")) {
				err.Detail += "; all the memory of a GPU without cores is the whole GPU: ask for cores too"
				found.add(err)
			}
		}
	}
}

// checkLeast finds GPUs that the scheduler may choose for a request for a whole one, and the node refuses since the class
// asks for more. The scheduler knows no bounds.
func (a *ask) checkLeast(found *Findings, devices []member) {
	least, largest := a.class.least(), most(devices, v1alpha1.CapacityMemory)
	if a.amount.MemoryBytes > 0 || largest == nil {
		return
	}
	if least.Cmp(*largest) > 0 {
		found.warn(a.path.Child("capacity", "requests").Key("memory"), tooFew(v1alpha1.CapacityMemory, *largest)+", which asks for at least "+least.String())
		return
	}
	for _, m := range devices {
		if total, _ := m.total(v1alpha1.CapacityMemory); least.Cmp(total) > 0 {
			found.warn(a.path.Child("selectors"), fmt.Sprintf("may get %s, which has %s where the device class asks for at least %s: select by capacity",
				m.place, readable(v1alpha1.CapacityMemory, total), least.String()))
			return
		}
	}
}

// least is what a class asks for at least of memory.
func (c *class) least() resource.Quantity {
	var least resource.Quantity
	for _, p := range c.parameters {
		if p.Memory != nil && p.Memory.Min != nil && p.Memory.Min.Cmp(least) > 0 {
			least = *p.Memory.Min
		}
	}
	return least
}

// most is the largest amount that one of the devices has, nil where none has the capacity.
func most(devices []member, name resourceapi.QualifiedName) *resource.Quantity {
	var most *resource.Quantity
	for _, m := range devices {
		if total, ok := m.total(name); ok && (most == nil || total.Cmp(*most) > 0) {
			most = &total
		}
	}
	return most
}

func tooFew(name resourceapi.QualifiedName, largest resource.Quantity) string {
	return fmt.Sprintf("no GPU in the cluster has more than %s for this class", readable(name, largest))
}

// total is what a device has of a capacity. Nodes may publish the name with the driver's domain or without; who asks
// gives it as it is published.
func (m member) total(name resourceapi.QualifiedName) (resource.Quantity, bool) {
	c, ok := m.visible.Capacity[name]
	return c.Value, ok
}

// wanted are the amounts that a device must have for a request.
func (a *ask) wanted() map[resourceapi.QualifiedName]resource.Quantity {
	wanted := map[resourceapi.QualifiedName]resource.Quantity{}
	if *a.capacity != nil {
		maps.Copy(wanted, (*a.capacity).Requests)
	}
	if a.amount.MemoryBytes > 0 {
		wanted[v1alpha1.CapacityMemory] = *resource.NewQuantity(int64(a.amount.MemoryBytes), resource.BinarySI)
	}
	return wanted
}

func (a *ask) shortfall(devices []member) shortfall {
	wanted := a.wanted()
	path := a.path.Child("capacity", "requests")
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		largest := most(devices, name)
		if largest == nil {
			return shortfall{path.Key(string(name)), "no GPU in the cluster has such a capacity for this class"}
		}
		if amount := wanted[name]; amount.Cmp(*largest) > 0 {
			return shortfall{path.Key(string(name)), tooFew(name, *largest)}
		}
	}
	for _, m := range devices {
		if m.holds(wanted) {
			return shortfall{}
		}
	}
	return shortfall{path, "no GPU in the cluster has all of this together for this class"}
}

func (m member) holds(wanted map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, amount := range wanted {
		if total, ok := m.total(name); !ok || amount.Cmp(total) > 0 {
			return false
		}
	}
	return true
}

// readable rounds memory down to what people compare: 79.1Gi.
func readable(name resourceapi.QualifiedName, q resource.Quantity) string {
	if bytes := q.Value(); name == v1alpha1.CapacityMemory && bytes >= 1<<30 && q.String() != fmt.Sprintf("%dGi", bytes>>30) {
		return fmt.Sprintf("%d.%dGi", bytes>>30, bytes%(1<<30)*10>>30)
	}
	return q.String()
}
