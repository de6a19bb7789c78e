package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"aliquot.dev/aliquot/internal/inventory"
)

// A kubelet that starts anew registers the plugin and deletes the node's slices, in whatever order.
func TestSlicesAreBackSoonAfterAKubeletWasStarted(t *testing.T) {
	s := serve(t)
	s.register(t)
	devices := 0
	for _, d := range s.hardware.devices {
		devices += len(inventory.Devices(d))
	}
	s.published(t, devices)

	registration := registerapi.NewRegistrationClient(connect(t, filepath.Join(s.config.RegistrarDir, "gpu.aliquot.dev-reg.sock")))
	if _, err := registration.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	slices := s.client.ResourceV1().ResourceSlices()
	list, err := slices.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone := map[string]bool{}
	for _, slice := range list.Items {
		gone[slice.Name] = true
		if err := slices.Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The library alone would take DefaultSyncDelay, 30 s.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for back := 0; back < len(gone); {
		select {
		case event := <-s.slices.ResultChan():
			if slice, ok := event.Object.(*resourceapi.ResourceSlice); ok && event.Type == watch.Added && !gone[slice.Name] {
				back++
			}
		case <-ctx.Done():
			t.Fatalf("%d of %d slices are back", back, len(gone))
		}
	}
}

// The process lives, but the kubelet cannot reach it.
func TestAPluginWhoseSocketIsGoneIsNotAlive(t *testing.T) {
	for dir, socket := range map[string]string{"registrar": "gpu.aliquot.dev-reg.sock", "data": "dra.sock"} {
		s := serve(t)
		s.register(t)
		if err := s.driver.Alive(t.Context()); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(map[string]string{"registrar": s.config.RegistrarDir, "data": s.config.DataDir}[dir], socket)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := s.driver.Alive(t.Context()); err == nil || !strings.Contains(err.Error(), socket) {
			t.Errorf("without %s alive: %v", socket, err)
		}
	}
}

// A preparation takes seconds where it makes partitions, and more where the API server hangs and a record is lost.
func TestAPluginThatIsBusyIsAlive(t *testing.T) {
	s := serve(t)
	s.register(t)
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	if err := s.driver.Alive(t.Context()); err != nil {
		t.Error(err)
	}
}
