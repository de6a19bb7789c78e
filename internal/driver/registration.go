package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
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
		d.known.Store(true)
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

// Alive dials the sockets that the kubelet uses: a plugin whose sockets somebody removed looks well to itself, and no pod
// starts. It asks for nothing that waits for a preparation, the GPUs or the API server: a plugin that waits is not to be
// restarted for it. Before the sockets are served nothing is wrong.
func (d *Driver) Alive(ctx context.Context) error {
	if d.helper.Load() == nil {
		return nil
	}
	return Serves(ctx, d.registrationSocket())
}

// Serves dials the socket by which the kubelet registers a plugin, and the one that the plugin names there.
func Serves(ctx context.Context, registration string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	endpoint := ""
	err := dial(registration, func(c *grpc.ClientConn) error {
		info, err := registerapi.NewRegistrationClient(c).GetInfo(ctx, &registerapi.InfoRequest{})
		endpoint = info.GetEndpoint()
		return err
	})
	if err != nil {
		return err
	}
	return dial(endpoint, func(c *grpc.ClientConn) error { return connected(ctx, c) })
}

// connected waits until a connection is there, or cannot be made.
func connected(ctx context.Context, c *grpc.ClientConn) error {
	c.Connect()
	for state := c.GetState(); state != connectivity.Ready; state = c.GetState() {
		if state == connectivity.TransientFailure || !c.WaitForStateChange(ctx, state) {
			return fmt.Errorf("no connection: %s", state)
		}
	}
	return nil
}

// dial asks something at a socket.
func dial(socket string, ask func(*grpc.ClientConn) error) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		err = errors.Join(ask(connection), connection.Close())
	}
	if err != nil {
		return fmt.Errorf("dial the plugin's socket %s: %w", socket, err)
	}
	return nil
}
