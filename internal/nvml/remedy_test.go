package nvml

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestRemediesAreForWhatWentWrong(t *testing.T) {
	n := New(Driver{Root: "/", RootMount: t.TempDir()})
	_, _, notFound := n.Devices()
	for want, err := range map[string]error{
		"install the NVIDIA driver": notFound,
		"modprobe nvidia":           fmt.Errorf("initialise NVML: %w", nvml.ERROR_DRIVER_NOT_LOADED),
		"restart the plugin's pod":  fmt.Errorf("initialise NVML: %w", nvml.ERROR_LIB_RM_VERSION_MISMATCH),
		"nvidia-smi -r":             skip(3, fmt.Errorf("open: %w", nvml.ERROR_GPU_IS_LOST)),
	} {
		if got := n.Remedy(err); !strings.Contains(got, want) {
			t.Errorf("%v: the remedy is %q, want %q in it", err, got, want)
		}
	}
	for _, err := range []error{errors.New("else"), nvml.ERROR_UNKNOWN} {
		if got := n.Remedy(err); got != "" {
			t.Errorf("%v: the remedy is %q", err, got)
		}
	}
}
