package preflight

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// runtimeDirs are where container runtimes look for CDI specs unless they are told otherwise: cdi.DefaultSpecDirs of
// tags.cncf.io/container-device-interface, and CDISpecDirs in internal/cri/config/config_unix.go of containerd. On a host /var/run is /run.
var runtimeDirs = append([]string{"/run/cdi"}, cdi.DefaultSpecDirs...)

// specs checks that the container runtime finds the plugin's specs where they are written, and can read all that is there.
func (c Config) specs() []Finding {
	const check = "CDI specs"
	var findings []Finding
	if !slices.Contains(runtimeDirs, filepath.Clean(c.CDIDir)) {
		findings = append(findings, warn(check, "see that the runtime's cdi_spec_dirs has it (containerd's config.toml, CRI-O's crio.conf), or set cdiDirectory to /var/run/cdi",
			"%s is not where container runtimes look by default", c.CDIDir))
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(c.CDIDir), cdi.WithAutoRefresh(false))
	if err != nil {
		return append(findings, fail(check, "see that it is a directory", "%s cannot be read: %v", c.CDIDir, err))
	}
	damaged := cache.GetErrors()
	told := map[string]bool{} // a conflict is an error of two files
	for _, path := range slices.Sorted(maps.Keys(damaged)) {
		for _, err := range damaged[path] {
			if text := err.Error(); !told[text] {
				findings = append(findings, damagedSpec(path, strings.TrimPrefix(text, "failed to load CDI Spec ")))
				told[text] = true
			}
		}
	}
	if len(findings) > 0 {
		return findings
	}
	count := 0
	for _, vendor := range cache.ListVendors() {
		count += len(cache.GetVendorSpecs(vendor))
	}
	return []Finding{ok(check, "%d in %s, and all can be read", count, c.CDIDir)}
}

// damagedSpec tells of a spec that the runtime cannot read, or that has a device which another spec has too: it then
// gives out neither. Others' devices do not suffer (WithCDIDevices in pkg/cdi/oci_opt.go of containerd).
func damagedSpec(path, text string) Finding {
	const check = "CDI specs"
	if strings.HasPrefix(filepath.Base(path), v1alpha1.DriverName+"-") {
		return fail(check, "delete the file and restart the plugin's pod, which writes the specs of all live claims again", "%s", text)
	}
	return warn(check, "repair or delete the file; what wrote it can tell which. Pods that use its devices do not start, those with shares do", "%s", text)
}
