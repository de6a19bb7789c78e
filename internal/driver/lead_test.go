package driver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"aliquot.dev/aliquot/internal/gpu"
)

// beside runs another driver over the same directories, as the pod with a UID. It sees a number of the GPUs.
func (s *served) beside(t *testing.T, uid types.UID, gpus int) *served {
	t.Helper()
	other, rig, hardware := *s, *s.rig, fakeHardware{devices: s.hardware.devices[:gpus]}
	other.rig, rig.hardware = &rig, &hardware
	rig.config.PodUID, rig.config.Hardware, rig.config.Partitioner = uid, &hardware, &hardware
	other.start(t)
	return &other
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-late:
			t.Fatalf("not so after 30 s: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *served) leads() bool {
	return s.driver.helper.Load() != nil && !s.driver.standby.Load()
}

// serveAs is serve for a plugin that knows its pod.
func serveAs(t *testing.T, uid types.UID) *served {
	t.Helper()
	s := serve(t)
	if err := s.stop(nil); err != nil {
		t.Fatal(err)
	}
	first := s.beside(t, uid, 8)
	eventually(t, "the first plugin leads", first.leads)
	return first
}

// The plugin that comes last leads once the kubelet knows it, the one before goes on serving and takes over again, and
// what the node publishes is never away.
func TestTheLastPluginLeads(t *testing.T) {
	first := serveAs(t, "pod-1")
	one := first.register(t)
	eventually(t, "all is published", func() bool { return first.allPublished(t) })
	gone := first.slicesGone(t, "00008") // the second plugin wants one less

	second := first.beside(t, "pod-2", 7) // so that it publishes something else
	eventually(t, "the second plugin serves", func() bool { return second.driver.helper.Load() != nil })
	if !first.leads() || second.leads() {
		t.Errorf("before the kubelet knows the second plugin: first leads %t, second %t", first.leads(), second.leads())
	}
	two := second.register(t)
	eventually(t, "the second plugin leads alone", func() bool { return second.leads() && !first.leads() })
	eventually(t, "the second plugin's GPUs are published", func() bool { return second.allPublished(t) })
	if first.driver.slices != nil || first.driver.published != nil {
		t.Error("the first plugin publishes still")
	}

	claim := claimOf("c", share("gpu", "gpu-0", "s1", "70Gi", "30"))
	first.allocate(t, claim)
	for name, kubelet := range map[string]drapb.DRAPluginClient{"first": one, "second": two} {
		first.prepared(t, kubelet, name)
	}
	if err := second.stop(nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first plugin leads again", first.leads)
	first.prepared(t, one, "first, again")
	eventually(t, "the first plugin's GPUs are published", func() bool { return first.allPublished(t) })
	if gone.Load() > 0 {
		t.Errorf("%d slices were deleted", gone.Load())
	}
	if err := first.stop(nil); err != nil {
		t.Fatal(err)
	}
	checkInvariant(t, first.driver)
}

// allPublished says whether the pool is whole, and as large as the driver wants it.
func (s *served) allPublished(t *testing.T) bool {
	t.Helper()
	resources, _ := s.driver.unpublished()
	want := len(resources.Pools["node/gpus"].Slices)
	now := s.slicesNow(t)
	for _, slice := range now {
		if pool := slice.Spec.Pool; pool.Generation != now[0].Spec.Pool.Generation || pool.ResourceSliceCount != int64(want) {
			return false
		}
	}
	return len(now) == want
}

func (s *served) slicesNow(t *testing.T) []resourceapi.ResourceSlice {
	t.Helper()
	list, err := s.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// slicesGone counts slices that are deleted from now on, except at one place in their order.
func (s *served) slicesGone(t *testing.T, except string) *atomic.Int64 {
	t.Helper()
	events, err := s.client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone, done := new(atomic.Int64), make(chan struct{})
	go func() {
		defer close(done)
		for event := range events.ResultChan() {
			if slice, ok := event.Object.(*resourceapi.ResourceSlice); ok && event.Type == watch.Deleted && !strings.HasPrefix(slice.Name, except) {
				gone.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		events.Stop()
		<-done
	})
	return gone
}

// prepared has a plugin prepare and unprepare the claim.
func (s *served) prepared(t *testing.T, kubelet drapb.DRAPluginClient, who string) {
	t.Helper()
	claims := []*drapb.Claim{{Namespace: "default", Name: "c", Uid: "c-uid"}}
	answer, err := kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: claims})
	if err != nil || answer.Claims["c-uid"].GetError() != "" {
		t.Errorf("%s: prepared: %v, %v", who, answer, err)
	}
	ended, err := kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil || ended.Claims["c-uid"].GetError() != "" {
		t.Errorf("%s: unprepared: %v, %v", who, ended, err)
	}
}

// A plugin without locks must have ended before another one touches anything. The other one's pod is ready, or the
// DaemonSet would never end the first.
func TestAPluginThatKnowsNoOthersIsWaitedFor(t *testing.T) {
	s := serve(t)
	s.register(t)
	next := s.beside(t, "pod-2", 8)
	eventually(t, "the next plugin waits", next.driver.replaces.Load)
	if err := next.driver.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	if err := next.driver.Alive(t.Context()); err != nil {
		t.Errorf("alive: %v", err)
	}
	if err := s.stop(nil); err != nil {
		t.Fatal(err)
	}
	next.register(t)
	eventually(t, "the next plugin leads", next.leads)
}

func TestSocketsOfTheDeadAreRemoved(t *testing.T) {
	s := serveAs(t, "pod-1")
	s.register(t)
	dead := []string{
		filepath.Join(s.config.RegistrarDir, "gpu.aliquot.dev-dead-reg.sock"), filepath.Join(s.config.RegistrarDir, unawareSocket),
		filepath.Join(s.config.DataDir, "dra-dead.sock"),
	}
	alive := filepath.Join(s.config.RegistrarDir, "gpu.aliquot.dev-alive-reg.sock")
	others := filepath.Join(s.config.RegistrarDir, "net.example.com-reg.sock")
	for _, path := range append([]string{alive, others}, dead...) {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		listener.SetUnlinkOnClose(false)
		if path == alive {
			t.Cleanup(func() { _ = listener.Close() })
			continue
		}
		_ = listener.Close() // leaves the socket, as a process does that is killed
	}
	write(t, filepath.Join(s.config.DataDir, "dra-file.sock"), "no socket")
	next := s.beside(t, "pod-2", 8)
	next.register(t)
	for _, path := range dead {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	for _, path := range []string{alive, others, s.driver.registrationSocket(), filepath.Join(s.config.DataDir, "dra-file.sock")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("removed: %v", err)
		}
	}
	if err := s.driver.Alive(t.Context()); err != nil {
		t.Errorf("the plugin that was there before: %v", err)
	}
}

// A call that is under way when the plugin is to end is answered, and no other one is begun.
func TestEndingFinishesWhatIsUnderWay(t *testing.T) {
	s := serve(t)
	claim := claimOf("c", share("gpu", "gpu-0", "s1", "10Gi", "30"))
	asked, answer := make(chan struct{}), make(chan struct{})
	ask := func() runtime.Object {
		close(asked)
		<-answer
		return claim
	}
	s.getClaim.Store(&ask)
	kubelet := s.register(t)
	eventually(t, "all is published", func() bool { return s.allPublished(t) })
	registration := registerapi.NewRegistrationClient(connect(t, s.driver.registrationSocket()))
	answered := make(chan error, 1)
	go func() {
		answers, err := kubelet.NodePrepareResources(context.Background(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "default", Name: "c", Uid: "c-uid"}}})
		if err == nil && len(answers.Claims["c-uid"].GetDevices()) != 1 {
			err = fmt.Errorf("answered: %v", answers)
		}
		answered <- err
	}()
	<-asked
	s.cancel(nil)
	eventually(t, "the plugin ends", func() bool {
		_, err := registration.GetInfo(t.Context(), &registerapi.InfoRequest{})
		return err != nil && strings.Contains(err.Error(), "the plugin ends")
	})
	close(answer)
	if err := <-answered; err != nil {
		t.Errorf("the call was cut: %v", err)
	}
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// One file has the node's health: a plugin that does not lead does not write it, and one that comes to lead reads it.
func TestHealthPassesFromPluginToPlugin(t *testing.T) {
	first := serveAs(t, "pod-1")
	first.register(t)
	second := first.beside(t, "pod-2", 8)
	eventually(t, "the second plugin serves", func() bool { return second.driver.helper.Load() != nil })
	first.driver.happened(t.Context(), gpu.Event{GPU: h100GPU0, Fault: gpu.XID(79)})
	if err := second.driver.discover(quiet(t)); err != nil {
		t.Fatal(err)
	}
	second.register(t)
	eventually(t, "the second plugin leads", second.leads)
	eventually(t, "the second plugin publishes the taint", func() bool {
		for _, slice := range second.slicesNow(t) {
			for _, device := range slice.Spec.Devices {
				if device.Name == "gpu-0" && len(device.Taints) > 0 {
					return true
				}
			}
		}
		return false
	})
	second.driver.happened(t.Context(), gpu.Event{GPU: h100GPU1, Fault: gpu.XID(79)})
	if err := second.stop(nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first plugin leads", first.leads)
	eventually(t, "the first plugin knows both", func() bool {
		patients, _ := first.driver.health.all()
		return patients[h100GPU0].isUnhealthy() && patients[h100GPU1].isUnhealthy()
	})
}
