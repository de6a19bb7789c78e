package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// names are what devices have in this driver's domain: what this version knows, and what the nodes publish, which may be
// of another version.
type names struct {
	attributes, capacities map[string]bool
}

func namesOf(devices []member) names {
	n := names{attributes: map[string]bool{}, capacities: map[string]bool{}}
	for _, name := range v1alpha1.Attributes() {
		n.attributes[string(name)] = true
	}
	for _, name := range v1alpha1.Capacities() {
		n.capacities[string(name)] = true
	}
	for _, device := range devices {
		for name := range device.visible.Attributes {
			learn(n.attributes, name)
		}
		for name := range device.visible.Capacity {
			learn(n.capacities, name)
		}
	}
	return n
}

// learn takes a name that is in this driver's domain, with or without saying so.
func learn(known map[string]bool, name resourceapi.QualifiedName) {
	if bare := strings.TrimPrefix(string(name), v1alpha1.DriverName+"/"); !strings.Contains(bare, "/") {
		known[bare] = true
	}
}

// problem says what is wrong with a name that an expression reads, or nothing.
func (n names) problem(r reference) string {
	known, others, kind, other := n.attributes, n.capacities, "attribute", "capacity"
	if r.capacity {
		known, others, kind, other = others, known, other, kind
	}
	switch {
	case known[r.name]:
		return ""
	case others[r.name]:
		place := map[string]string{"attribute": "attributes", "capacity": "capacity"}[other]
		return fmt.Sprintf("no device has such %s: it is in device.%s['%s']", article(kind), place, v1alpha1.DriverName)
	}
	return fmt.Sprintf("no device of %s has such %s: %s", v1alpha1.DriverName, article(kind), meant(r.name, known))
}

func article(kind string) string {
	if kind == "attribute" {
		return "an attribute"
	}
	return "a capacity"
}

// capacityProblem says what is wrong with a name in capacity.requests, or nothing.
func (n names) capacityProblem(name resourceapi.QualifiedName) string {
	if n.capacities[string(name)] {
		return ""
	}
	_, last, qualified := strings.Cut(string(name), "/")
	if qualified && n.capacities[last] {
		return fmt.Sprintf("capacities are asked for by their bare names: did you mean %q?", last)
	}
	return "no device has such a capacity: " + meant(string(name), n.capacities)
}

// meant proposes a name, or says which there are.
func meant(name string, known map[string]bool) string {
	sorted := slices.Sorted(maps.Keys(known))
	best, least := "", 3 // two slips of the finger
	for _, candidate := range sorted {
		if d := distance(letters(name), letters(candidate)); d < least && d < len(candidate)/2 {
			best, least = candidate, d
		}
	}
	for _, candidate := range sorted {
		if best == "" && akin(letters(name), letters(candidate)) {
			best = candidate
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "there are " + strings.Join(sorted, ", ")
}

// akin are mem and memory, or gpuMem and memory.
func akin(a, b string) bool {
	return len(a) >= 3 && strings.HasPrefix(b, a) || len(b) >= 4 && strings.Contains(a, b[:3])
}

// letters is what of a name is compared: few people know how others spell.
func letters(name string) string {
	keep := func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}
	const most = 64 // distance costs the product of the lengths
	return strings.Map(keep, strings.ToLower(name[:min(len(name), most)]))
}

// distance counts the letters to be put in, taken out, replaced, or swapped with the next.
func distance(a, b string) int {
	before, last, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(last[j]+1, next[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return last[len(b)]
}

// excerpt keeps what an error quotes short, and on one line.
func excerpt(s string) string { return clip(s, 60) }

func clip(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return strings.Join(strings.Fields(s), " ")
}
