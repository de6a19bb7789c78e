package preflight

import (
	"context"
	"errors"
	"path/filepath"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// sockets checks that the plugin answers where the kubelet looks for it.
func (c Config) sockets(ctx context.Context) []Finding {
	const check = "plugin"
	pattern := filepath.Join(c.RegistrarDir, v1alpha1.DriverName+"*-reg.sock")
	sockets, err := filepath.Glob(pattern)
	if err != nil || len(sockets) == 0 {
		return []Finding{fail(check, "see why the plugin does not run; if it does, set kubeletPlugin.kubeletRegistrarDirectoryPath to the kubelet's <root directory>/plugins_registry",
			"no socket %s", pattern)}
	}
	var errs []error
	for _, socket := range sockets {
		err := c.Serves(ctx, socket)
		if err == nil {
			return []Finding{ok(check, "answers at %s", socket)}
		}
		errs = append(errs, err)
	}
	return []Finding{fail(check, "restart the plugin's pod", "%v", errors.Join(errs...))}
}
