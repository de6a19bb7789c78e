package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/internal/inventory"
)

// served is a driver that Start runs.
type served struct {
	*rig
	driver *Driver
	slices watch.Interface
	cancel context.CancelCauseFunc
	ended  chan error // what Start returned
}

// serve starts a driver as the program does. Sockets need a short path.
func serve(t *testing.T) *served {
	t.Helper()
	root, err := os.MkdirTemp("", "aq")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	s := &served{rig: newRigIn(t, root, "h100x8")}
	s.config.RegistrarDir = filepath.Join(root, "reg")
	for _, dir := range []string{s.config.DataDir, s.config.RegistrarDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-uid"}}); err != nil {
		t.Fatal(err)
	}
	nameSlices(s.rig)
	if s.slices, err = s.client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	return s
}

// start runs another driver over the same directories.
func (s *served) start(t *testing.T) {
	t.Helper()
	var err error
	if s.driver, err = New(s.config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(quiet(t))
	s.cancel, s.ended = cancel, make(chan error, 1)
	go func(d *Driver, ended chan error) { ended <- d.Start(ctx) }(s.driver, s.ended)
	t.Cleanup(func() { cancel(nil) })
}

// nameSlices does what an API server does with generateName.
func nameSlices(r *rig) {
	var made atomic.Int64
	r.client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		slice := action.(k8stesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		if slice.Name == "" {
			slice.Name = fmt.Sprint(slice.GenerateName, made.Add(1))
		}
		return false, nil, nil
	})
}

// connect waits until a socket is served.
func connect(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Minute, Backoff: backoff.Config{BaseDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond, Multiplier: 2}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// register does what the kubelet does with a socket that appears, and returns where the plugin serves it.
func (s *served) register(t *testing.T) drapb.DRAPluginClient {
	t.Helper()
	registration := registerapi.NewRegistrationClient(connect(t, s.driver.registrationSocket()))
	info, err := registration.GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.Type != registerapi.DRAPlugin || info.Name != "gpu.aliquot.dev" || !strings.Contains(strings.Join(info.SupportedVersions, " "), drapb.DRAPluginService) {
		t.Errorf("registers as %v", info)
	}
	for s.driver.Ready().Error() == "starting" { // the sockets are there a moment before the driver knows
		<-time.After(time.Millisecond)
	}
	if err := s.driver.Ready(); !matches(err, "the kubelet has not registered the plugin") {
		t.Errorf("before the kubelet's answer, ready: %v", err)
	}
	if _, err := registration.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.driver.Ready(); err != nil {
		t.Errorf("after the kubelet's answer, ready: %v", err)
	}
	return drapb.NewDRAPluginClient(connect(t, info.Endpoint))
}

// published waits for n new slices and returns their devices by name.
func (s *served) published(t *testing.T, n int) map[string]resourceapi.Device {
	t.Helper()
	devices := map[string]resourceapi.Device{}
	for len(devices) < n {
		select {
		case event := <-s.slices.ResultChan():
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if !ok || event.Type != watch.Added {
				continue
			}
			if slice.Spec.Driver != "gpu.aliquot.dev" || slice.Spec.Pool.Name != "node/gpus" || ptr.Deref(slice.Spec.NodeName, "") != "node" {
				t.Errorf("slice %s: %v", slice.Name, slice.Spec)
			}
			for _, device := range slice.Spec.Devices {
				devices[device.Name] = device
			}
		case err := <-s.ended:
			t.Fatalf("Start returned: %v", err)
		case <-t.Context().Done():
			t.Fatalf("only %d devices are published", len(devices))
		}
	}
	return devices
}

// stop ends the driver and returns what Start did.
func (s *served) stop(cause error) error {
	s.cancel(cause)
	return <-s.ended
}

func TestServingTheKubelet(t *testing.T) {
	s := serve(t)
	claim := claimOf("c", share("gpu/large", "gpu-0", "s1", "10Gi", "30"))
	bad := claimOf("bad", whole("gpu", "gpu-9"))
	s.allocate(t, claim, bad)
	kubelet := s.register(t)

	want := map[string]resourceapi.Device{}
	for _, d := range s.hardware.devices {
		for _, device := range inventory.Devices(d) {
			want[device.Name] = device
		}
	}
	if diff := cmp.Diff(want, s.published(t, len(want))); diff != "" {
		t.Errorf("published devices (-want +got):\n%s", diff)
	}

	response, err := kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{
		{Namespace: "default", Name: "c", Uid: "c-uid"}, {Namespace: "default", Name: "bad", Uid: "bad-uid"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := response.Claims["c-uid"]
	if got.GetError() != "" || len(got.GetDevices()) != 1 {
		t.Fatalf("prepared: %v", got)
	}
	device := got.Devices[0]
	wantIDs := []string{"gpu.aliquot.dev/share=c-uid_gpu.large_s1", "gpu.aliquot.dev/metadata=c-uid_gpu"}
	if diff := cmp.Diff(wantIDs, device.CdiDeviceIds); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	if device.PoolName != "node/gpus" || device.DeviceName != "gpu-0" || device.GetShareId() != "s1" || strings.Join(device.RequestNames, " ") != "gpu" {
		t.Errorf("device: %v", device)
	}
	if text := response.Claims["bad-uid"].GetError(); !strings.Contains(text, `device "gpu-9" is not on this node now`) {
		t.Errorf("the bad claim: %q", text)
	}
	metadata := filepath.Join(s.config.DataDir, "dra-device-metadata", "default_c", "gpu", "metadata.json")
	if text := read(t, metadata); !strings.Contains(text, h100GPU0) || !strings.Contains(text, "NVIDIA H100 80GB HBM3") {
		t.Errorf("metadata: %s", text)
	}

	unprepared, err := kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{
		{Namespace: "default", Name: "c", Uid: "c-uid"}, {Namespace: "default", Name: "bad", Uid: "bad-uid"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"c-uid", "bad-uid"} {
		if answer, ok := unprepared.Claims[uid]; !ok || answer.Error != "" {
			t.Errorf("unprepared %s: %v", uid, answer)
		}
	}
	if left := append(list(t, s.config.Layout.SpecDir), list(t, s.config.Layout.SharesDir)...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(metadata); !os.IsNotExist(err) {
		t.Errorf("metadata is left: %v", err)
	}

	if err := s.stop(nil); err != nil {
		t.Errorf("Start returned %v", err)
	}
	if sockets := list(t, s.config.RegistrarDir); len(sockets) > 0 {
		t.Errorf("left for the kubelet to find: %v", sockets)
	}
	checkInvariant(t, s.driver)
}

func TestServingAgainAfterARestart(t *testing.T) {
	s := serve(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "30"))
	s.allocate(t, claim)
	request := &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "default", Name: "c", Uid: "c-uid"}}}
	first, err := s.register(t).NodePrepareResources(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stop(nil); err != nil {
		t.Fatal(err)
	}
	wipe(t, s.rig)
	s.start(t)
	kubelet := s.register(t)
	if specs, _ := onDisk(t, s.driver); len(specs["c-uid"]) != 1 {
		t.Errorf("a driver that serves has not mended: %v", specs)
	}
	second, err := kubelet.NodePrepareResources(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.String(), second.String()); diff != "" {
		t.Errorf("answers (-first +second):\n%s", diff)
	}
	if err := s.stop(nil); err != nil {
		t.Fatal(err)
	}
	checkInvariant(t, s.driver)
}

func TestWhatEndsStart(t *testing.T) {
	tests := map[string]struct {
		end  func(*testing.T, *served)
		want string
	}{
		"the caller":      {func(_ *testing.T, s *served) { s.cancel(nil) }, ""},
		"the caller says": {func(_ *testing.T, s *served) { s.cancel(errors.New("health cannot be served")) }, "health cannot be served"},
		"a fatal error": {func(_ *testing.T, s *served) {
			s.driver.HandleError(context.Background(), errors.New("socket is gone"), "DRA gRPC server failed")
		}, "DRA gRPC server failed: socket is gone"},
		"not a publication": {func(t *testing.T, s *served) { s.failPublication(t); s.cancel(nil) }, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			s.register(t)
			tc.end(t, s)
			if err := <-s.ended; !matches(err, tc.want) {
				t.Errorf("Start returned %v, want %q", err, tc.want)
			}
		})
	}
}

// failPublication hands the driver an error that a retry may mend, which is told and ends nothing.
func (s *served) failPublication(t *testing.T) {
	t.Helper()
	s.driver.HandleError(context.Background(), fmt.Errorf("slice is invalid: %w", kubeletplugin.ErrRecoverable), "publish")
	told := s.told()
	if !slices.Contains(told, "Warning PublishFailed publish: slice is invalid: recoverable error") {
		t.Errorf("Events: %v", told)
	}
}

func TestReadyBeforeStart(t *testing.T) {
	r := newRig(t, "h100x8")
	d, err := New(r.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ready(); !matches(err, "starting") {
		t.Errorf("after New, ready: %v", err)
	}
	if err := d.discover(quiet(t)); err != nil {
		t.Fatal(err)
	}
	if err := d.Ready(); !matches(err, "starting") {
		t.Errorf("after discovery, ready: %v", err)
	}
	if left := list(t, filepath.Dir(r.config.DataDir)); !slices.Equal(left, []string{"data/state.lock"}) {
		t.Errorf("New or discovery wrote %v", left)
	}
}
