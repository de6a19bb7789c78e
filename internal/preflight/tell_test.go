package preflight

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// told are the notes that Tell gives, each after its reason, once the plugin is ready.
func (w *world) told(ctx context.Context, ready func() error) (notes []string) {
	w.Helper()
	Tell(ctx, w.Config, ready, func(reason, note string) { notes = append(notes, w.plain(reason+" "+note)) })
	return notes
}

func isReady() error { return nil }

func TestWhatIsNotOKIsTold(t *testing.T) {
	w := newWorld(t, "t4x4")
	if notes := w.told(t.Context(), isReady); len(notes) > 0 {
		t.Errorf("of a healthy node it tells %q", notes)
	}
	w.hardware.lacks["/dev/nvidia-uvm"] = true
	w.serverVersion("v1.36.0")
	notes := w.told(t.Context(), isReady)
	want := []string{
		"PreflightFailed device nodes: /dev/nvidia-uvm is missing under /run/nvidia/driver. To mend it: run `nvidia-modprobe -u -c 0` as root on the node, in the driver container if there is one",
		"PreflightWarning API server: Kubernetes v1.36.0, whose scheduler does not keep shares and partitions of one GPU apart. To mend it: until the upgrade to 1.37 keep shares and MIG partitions on different nodes",
	}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if again := w.told(t.Context(), isReady); !slices.Equal(again, notes) {
		t.Errorf("the same is told otherwise: %q", again)
	}
}

func TestPreflightWaitsUntilThePluginHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "t4x4")
		devices := w.unpublish()
		start := time.Now()
		ready := func() error {
			switch {
			case time.Since(start) < 10*time.Second:
				return errors.New("starting")
			case devices != nil && time.Since(start) > 20*time.Second:
				w.publish(devices)
				devices = nil
			}
			return nil
		}
		if notes := w.told(t.Context(), ready); len(notes) > 0 {
			t.Errorf("it did not wait, and tells %q", notes)
		}
		if waited := time.Since(start); waited > 30*time.Second {
			t.Errorf("it waited for %s", waited)
		}
	})
}

func TestAPluginThatDoesNotBeginIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "t4x4")
		w.unpublish()
		if notes := w.told(t.Context(), isReady); len(notes) != 1 || !strings.HasPrefix(notes[0], "PreflightFailed ResourceSlices: none with devices of this node") {
			t.Errorf("it tells %q", notes)
		}
	})
}

func TestNothingIsToldAtTheEnd(t *testing.T) {
	w := newWorld(t, "t4x4")
	w.hardware.err = errLoaded
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if notes := w.told(ctx, isReady); len(notes) > 0 {
		t.Errorf("it tells %q", notes)
	}
}
