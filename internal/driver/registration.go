package driver

import (
	"context"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// republishAfter is when slices are published again after a kubelet has registered the plugin. A kubelet that starts
// deletes the node's slices, in the background and with retries (wipeResourceSlices in
// k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin), so once may be too early. The library by itself publishes 30 s after the
// deletion (resourceslice.DefaultSyncDelay), and until then no pod comes to the node.
var republishAfter = []time.Duration{0, 3 * time.Second, 10 * time.Second}

// registered is called for each of the kubelet's calls and notes when it has registered the plugin: it was started anew.
func (d *Driver) registered(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	response, err := handle(ctx, request)
	if status, ok := request.(*registerapi.RegistrationStatus); ok && err == nil && status.PluginRegistered {
		d.lookSoon() // and compare what is prepared with the API
		for _, wait := range republishAfter {
			time.AfterFunc(wait, d.publishAgain)
		}
	}
	return response, err
}

// publishAgain has Start publish what it published before.
func (d *Driver) publishAgain() {
	select {
	case d.again <- struct{}{}:
	default: // asked for already
	}
}

// forgetPublished lets the next publish tell all, even if nothing changed.
func (d *Driver) forgetPublished() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.published = nil
}
