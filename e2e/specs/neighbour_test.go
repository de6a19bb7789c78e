//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"testing"

	"aliquot.dev/aliquot/e2e/scenario"
)

// A GPU that a device plugin gives out too would be given out twice.
func TestGPUsOfADevicePluginAreWithdrawn(t *testing.T) {
	s := begin(t, late)
	s.pluginReady()
	s.start("before", s.share("1Gi"), cuda("main"))
	s.held("before", "1Gi")
	s.advertise("nvidia.com/gpu", `"2"`)
	s.nodeTold("DevicePluginFound", "nvidia.com/gpu")
	s.publishes(false)
	plugin, err := s.Plugin(t.Context(), s.node)
	s.must(err)
	if scenario.Ready(plugin) {
		s.eventually("the plugin is not ready", func(ctx context.Context) (bool, error) {
			plugin, err := s.Plugin(ctx, s.node)
			return err == nil && !scenario.Ready(plugin), err
		})
	}
	s.stillHeld("before", "1Gi")
	s.advertise("nvidia.com/gpu", "null")
	s.publishes(true)
	s.pluginReady()
}

// advertise sets what the kubelet says of the node in the name of a device plugin.
func (s *spec) advertise(resource, amount string) {
	s.Helper()
	patch := fmt.Sprintf(`{"status": {"capacity": {%[1]q: %[2]s}, "allocatable": {%[1]q: %[2]s}}}`, resource, amount)
	s.kubectl("patch", "node", s.node, "--subresource", "status", "--type", "merge", "--patch", patch)
}

func (s *spec) publishes(any bool) {
	s.Helper()
	s.eventually(fmt.Sprintf("devices of the node are published: %t", any), func(ctx context.Context) (bool, error) {
		devices, err := s.devices(ctx, s.node)
		return err == nil && len(devices) > 0 == any, err
	})
}
