package admission

import (
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// patch is one operation of a JSON patch (RFC 6902).
type patch struct {
	Operation string `json:"op"`
	Path      string `json:"path"`
	Value     any    `json:"value"`
}

// patches are the operations that add what was filled in. They touch nothing else, so that fields that this version does
// not know are kept.
func patches(before, after *resourceapi.ResourceClaimSpec, path *field.Path) []patch {
	var all []patch
	was := asksOf(before, path)
	for i, a := range asksOf(after, path) {
		old, now := *was[i].capacity, *a.capacity
		at := pointer(a.path.Child("capacity"))
		switch {
		case now == nil:
		case old == nil:
			all = append(all, patch{"add", at, now})
		case old.Requests == nil && now.Requests != nil:
			all = append(all, patch{"add", at + "/requests", now.Requests})
		default:
			for _, name := range slices.Sorted(maps.Keys(now.Requests)) {
				if _, had := old.Requests[name]; !had {
					all = append(all, patch{"add", at + "/requests/" + string(name), now.Requests[name]})
				}
			}
		}
	}
	return all
}

// pointer writes a path as a JSON pointer: spec.requests[0].exactly becomes /spec/requests/0/exactly.
func pointer(path *field.Path) string {
	return "/" + strings.NewReplacer(".", "/", "[", "/", "]", "").Replace(path.String())
}
