package driver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// unawareSocket is where a plugin registers that was given no pod UID.
const unawareSocket = v1alpha1.DriverName + "-reg.sock"

// registrationSocket is where the kubelet finds this process. The library names it.
func (d *Driver) registrationSocket() string {
	name := unawareSocket
	if d.config.PodUID != "" {
		name = kubeletplugin.RollingUpdateRegistrarSocketFile(d.config.RegistrarDir, v1alpha1.DriverName, d.config.PodUID)
	}
	return filepath.Join(d.config.RegistrarDir, name)
}

// serviceSocket names the socket for prepare and unprepare. The library would have the whole UID in it, which is too long for a
// socket where the kubelet's directory is some way down, as MicroK8s has it.
func (d *Driver) serviceSocket() string {
	if d.config.PodUID == "" {
		return "dra.sock"
	}
	return fmt.Sprintf("dra-%x", sha256.Sum256([]byte(d.config.PodUID)))[:len("dra-")+16] + ".sock"
}

// serve begins to serve the kubelet. The helper does not end with ctx, but with stopServing.
func (d *Driver) serve(ctx context.Context) error {
	var helper *kubeletplugin.Helper
	err := d.exclusively(func() (err error) {
		removeDeadSockets(ctx, filepath.Join(d.config.RegistrarDir, v1alpha1.DriverName+"*-reg.sock"))
		removeDeadSockets(ctx, filepath.Join(d.config.DataDir, "dra*.sock"))
		helper, err = kubeletplugin.Start(context.WithoutCancel(ctx), d,
			kubeletplugin.DriverName(v1alpha1.DriverName),
			kubeletplugin.KubeClient(d.config.Client),
			kubeletplugin.Serialize(false), // or pods would wait for the partitions of others
			kubeletplugin.RollingUpdate(d.config.PodUID),
			kubeletplugin.RegistrarDirectoryPath(d.config.RegistrarDir),
			kubeletplugin.PluginDataDirectoryPath(d.config.DataDir),
			kubeletplugin.PluginSocket(d.serviceSocket()),
			kubeletplugin.CDIDirectory(d.config.Layout.SpecDir),
			kubeletplugin.GRPCInterceptor(d.tracedCall),
			kubeletplugin.GRPCInterceptor(d.whole),
			kubeletplugin.GRPCInterceptor(d.registered),
			kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
		)
		return err
	})
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	d.helper.Store(helper)
	return nil
}

const (
	// callLimit is for how long the kubelet waits for an answer (defaultClientCallTimeout in its dra_plugin.go).
	callLimit = 45 * time.Second
	// sendTime is left for an answer to reach the kubelet, which nothing tells.
	sendTime = 100 * time.Millisecond
)

// stopServing lets calls finish that are under way, and ends the service. The kubelet repeats a call that is cut, but only after
// 10 seconds or more.
func (d *Driver) stopServing() {
	if !d.calls.TryLock() {
		late, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		go func() {
			d.calls.Lock()
			cancel()
		}()
		<-late.Done()
		pause(context.Background(), sendTime)
	}
	d.helper.Load().Stop()
}

// whole is called for each of the kubelet's calls: stopServing waits for its end.
func (d *Driver) whole(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if !d.calls.TryRLock() {
		return nil, status.Error(codes.Unavailable, "the plugin ends")
	}
	defer d.calls.RUnlock()
	return handle(ctx, request)
}

// tracedCall has a span for each of the kubelet's calls, named as its method: what the library does is in it too.
func (d *Driver) tracedCall(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	err = d.span(ctx, path.Base(info.FullMethod), func(ctx context.Context) error {
		answer, err = handle(ctx, request)
		return err
	})
	return answer, err
}

// awaitUnaware waits for the end of a plugin that serves this node and may know nothing of others: one of a version before there were
// locks, or one whose pod has not told its UID. The pod of this one is ready meanwhile, so that the other's is ended.
func (d *Driver) awaitUnaware(ctx context.Context) error {
	socket := filepath.Join(d.config.RegistrarDir, unawareSocket)
	if d.config.PodUID == "" || !answers(ctx, socket) {
		return nil
	}
	klog.FromContext(ctx).Info("Waiting for the end of a plugin that cannot run beside another", "socket", socket)
	d.replaces.Store(true)
	defer d.replaces.Store(false)
	for answers(ctx, socket) {
		if pause(ctx, turnEvery); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// answers says whether somebody listens at a socket.
func answers(ctx context.Context, socket string) bool {
	connection, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// removeDeadSockets removes sockets at which nobody listens any more, since their processes were killed: the kubelet
// would try to reach them for ever. It runs where no other process makes one.
func removeDeadSockets(ctx context.Context, pattern string) {
	sockets, _ := filepath.Glob(pattern) // the pattern is right
	for _, socket := range sockets {
		if info, err := os.Lstat(socket); err != nil || info.Mode().Type() != fs.ModeSocket {
			continue
		}
		connection, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = connection.Close()
			continue
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			klog.FromContext(ctx).Info("Removing the socket of a process that is dead", "socket", socket)
			_ = os.Remove(socket) // or it stays, and does no harm to others
		}
	}
}
