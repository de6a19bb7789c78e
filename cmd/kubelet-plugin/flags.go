package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
)

// flags are the plugin's settings.
type flags struct {
	podUID          string
	nodeName        string
	kubeconfig      string
	driverRoot      string
	driverRootMount string
	registrarDir    string
	pluginsDir      string
	cdiDir          string
	runDir          string
	preloadLibrary  string
	cdiHook         string
	healthAddress   string
	discovery       time.Duration
	contextReserve  string
	fatalTaint      string
	degradedTaint   string
	beside          bool
	tracingEndpoint string
	tracingRate     int32
}

func (f *flags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.nodeName, "node-name", "", "name of the Node object of this node (required)")
	fs.StringVar(&f.podUID, "pod-uid", "", "UID of the plugin's pod, by which it can run beside the one that it replaces; empty: it is never beside another one")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; empty uses the pod's service account")
	fs.StringVar(&f.driverRoot, "driver-root", "/", "where the NVIDIA driver is installed on the host")
	fs.StringVar(&f.driverRootMount, "driver-root-mount", "/driver-root", "where this process sees the driver root")
	fs.StringVar(&f.registrarDir, "kubelet-registrar-dir", kubeletplugin.KubeletRegistryDir, "where the kubelet looks for plugins")
	fs.StringVar(&f.pluginsDir, "kubelet-plugins-dir", kubeletplugin.KubeletPluginsDir, "where plugins keep their data; the same path on the host and here")
	fs.StringVar(&f.cdiDir, "cdi-dir", "/var/run/cdi", "where the container runtime reads CDI specs")
	fs.StringVar(&f.runDir, "run-dir", "/run/aliquot", "where the files of shares are kept, on tmpfs; the same path on the host and here")
	fs.StringVar(&f.preloadLibrary, "preload-library", "/usr/lib/aliquot/libaliquot.so", "the preload library, in the image")
	fs.StringVar(&f.cdiHook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "the NVIDIA Container Toolkit's hook program, in the image")
	fs.StringVar(&f.healthAddress, "health-address", ":8080", "where /healthz and /readyz are served")
	fs.DurationVar(&f.discovery, "discovery-interval", time.Minute, "how often GPUs are looked for and prepared claims are compared with the API's; at least 1s")
	fs.BoolVar(&f.beside, "beside-device-plugin", false, "publish GPUs although a device plugin offers GPUs of this node too")
	fs.StringVar(&f.tracingEndpoint, "tracing-endpoint", "", "host:port of the OpenTelemetry collector that is sent traces, by OTLP over gRPC without TLS; empty: none is")
	fs.Int32Var(&f.tracingRate, "tracing-sampling-rate-per-million", 1_000_000, "how many of a million traces are sent")
	fs.StringVar(&f.contextReserve, "context-reserve", "512Mi", "what a process's first CUDA context is charged to its share until it was measured, 0 to 16Gi, rounded up to MiB; 0 charges none")
	fs.StringVar(&f.fatalTaint, "fatal-taint", "NoExecute", "effect of the taint of a GPU that cannot compute until it is reset: NoExecute evicts its pods, NoSchedule keeps new ones away, None only informs")
	fs.StringVar(&f.degradedTaint, "degraded-taint", "NoSchedule", "effect of the taint of a GPU on which nothing new should be begun: NoExecute, NoSchedule or None")
}

// uidPattern is what the API server and the kubelet make, and what may be part of a file's name.
var uidPattern = regexp.MustCompile(`^[0-9a-f][-0-9a-f]{0,62}$`)

func (f *flags) validate() error {
	if f.nodeName == "" {
		return errors.New("--node-name is required: set it, or NODE_NAME, to the name of the Node object")
	}
	if f.podUID != "" && !uidPattern.MatchString(f.podUID) {
		return fmt.Errorf("--pod-uid is %q: want the UID of a pod", f.podUID)
	}
	for name, path := range map[string]string{
		"driver-root": f.driverRoot, "driver-root-mount": f.driverRootMount, "kubelet-registrar-dir": f.registrarDir,
		"kubelet-plugins-dir": f.pluginsDir, "cdi-dir": f.cdiDir, "run-dir": f.runDir,
	} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s is %q: want an absolute path", name, path)
		}
	}
	if f.discovery < time.Second {
		return fmt.Errorf("--discovery-interval is %s: want 1s or more", f.discovery)
	}
	for name, effect := range map[string]string{"fatal-taint": f.fatalTaint, "degraded-taint": f.degradedTaint} {
		if !slices.Contains([]string{"NoExecute", "NoSchedule", "None"}, effect) {
			return fmt.Errorf("--%s is %q: want NoExecute, NoSchedule or None", name, effect)
		}
	}
	if err := f.validateTracing(); err != nil {
		return err
	}
	_, err := f.contextMiB()
	return err
}

func (f *flags) taints() map[gpu.Severity]resourceapi.DeviceTaintEffect {
	return map[gpu.Severity]resourceapi.DeviceTaintEffect{
		gpu.Fatal: resourceapi.DeviceTaintEffect(f.fatalTaint), gpu.Degraded: resourceapi.DeviceTaintEffect(f.degradedTaint),
	}
}

// contextLimit is the most that a context may be charged before it was measured.
const contextLimit = 16 << 30

// contextMiB is --context-reserve in MiB.
func (f *flags) contextMiB() (uint32, error) {
	reserve, err := resource.ParseQuantity(f.contextReserve)
	if err != nil {
		return 0, fmt.Errorf("--context-reserve is %q: want an amount of memory such as 512Mi: %w", f.contextReserve, err)
	}
	if reserve.Sign() < 0 || reserve.Cmp(*resource.NewQuantity(contextLimit, resource.BinarySI)) > 0 {
		return 0, fmt.Errorf("--context-reserve is %s: want 0 to 16Gi", f.contextReserve)
	}
	return uint32((reserve.Value() + 1<<20 - 1) >> 20), nil // Value rounds up
}

func (f *flags) dataDir() string {
	return filepath.Join(f.pluginsDir, v1alpha1.DriverName)
}

// fromEnvironment sets each flag that the command line does not give from its environment variable, --node-name from
// NODE_NAME.
func fromEnvironment(fs *pflag.FlagSet) error {
	var errs []error
	fs.VisitAll(func(flag *pflag.Flag) {
		name := strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(flag.Name))
		if value, ok := os.LookupEnv(name); ok && !flag.Changed && flag.Name != "kubeconfig" {
			if err := fs.Set(flag.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
			}
		}
	})
	return errors.Join(errs...)
}
