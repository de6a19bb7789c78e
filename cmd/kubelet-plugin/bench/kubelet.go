package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/bench"
)

const program = "bin/aliquot-kubelet-plugin"

// kubelet is what the kubelet has of a plugin.
type kubelet struct {
	drapb.DRAPluginClient
	connections []*grpc.ClientConn
}

// startPlugin starts the program as the chart does, but for its rights, and registers it.
func (w *world) startPlugin(ctx context.Context) error {
	if w.kubelet != nil {
		w.kubelet.close()
	}
	port, err := bench.FreePort()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "--node-name="+node, "--kubeconfig="+w.Kubeconfig,
		"--driver-root="+w.driver.Path, "--driver-root-mount="+w.driver.Path,
		"--kubelet-registrar-dir="+w.registrar(), "--kubelet-plugins-dir="+w.plugins(),
		"--cdi-dir="+w.specs(), "--run-dir="+filepath.Dir(w.shares()),
		"--preload-library=bin/libaliquot.so", "--cdi-hook=bin/nvidia-cdi-hook",
		"--health-address=127.0.0.1:"+port, "--v=2")
	if w.plugin, err = bench.Launch(cmd, w.dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	go func(p *bench.Process) {
		select {
		case <-p.Ended:
			cancel()
		case <-ctx.Done():
		}
	}(w.plugin)
	if w.kubelet, err = register(ctx, filepath.Join(w.registrar(), v1alpha1.DriverName+"-reg.sock")); err != nil {
		select {
		case <-w.plugin.Ended:
			return w.plugin.Why()
		default:
			return err
		}
	}
	return nil
}

// register does what the kubelet does with a socket that appears.
func register(ctx context.Context, socket string) (_ *kubelet, err error) {
	k := &kubelet{}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	connection, err := k.dial(socket)
	if err != nil {
		return nil, err
	}
	registration := registerapi.NewRegistrationClient(connection)
	info, err := registration.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the plugin at %s: %w", socket, err)
	}
	if _, err := registration.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		return nil, fmt.Errorf("register the plugin: %w", err)
	}
	if connection, err = k.dial(info.Endpoint); err != nil {
		return nil, err
	}
	k.DRAPluginClient = drapb.NewDRAPluginClient(connection)
	return k, nil
}

// dial connects as soon as somebody listens: the kubelet is told by inotify, and so is not late either.
func (k *kubelet) dial(socket string) (*grpc.ClientConn, error) {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Minute, Backoff: backoff.Config{BaseDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond, Multiplier: 2}}))
	if err == nil {
		k.connections = append(k.connections, connection)
	}
	return connection, err
}

func (k *kubelet) close() {
	for _, connection := range k.connections {
		_ = connection.Close()
	}
}
