// Command aliquot-kubelet-plugin shares the NVIDIA GPUs of the node it runs on: it publishes them to the scheduler and
// prepares the claims that are allocated here. It wires the packages together and holds no logic of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/driver"
	"aliquot.dev/aliquot/internal/nvml"
	"aliquot.dev/aliquot/internal/preflight"
)

// version is set at link time.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "aliquot-kubelet-plugin:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var f flags
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:           "aliquot-kubelet-plugin",
		Short:         "Share the NVIDIA GPUs of this node between pods.",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			return f.validate()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer logs.FlushLogs()
			return run(cmd.Context(), f)
		},
	}
	f.add(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	cmd.AddCommand(doctorCommand())
	return cmd
}

// run serves until ctx ends.
func run(ctx context.Context, f flags) error {
	klog.FromContext(ctx).Info("Starting", "version", version, "node", f.nodeName, "driverRoot", f.driverRoot)
	traces, err := startTracing(ctx, f)
	if err != nil {
		return err
	}
	defer traces.stop()
	client, err := newClient(f.kubeconfig, traces.requests)
	if err != nil {
		return err
	}
	layout, hook, err := install(f)
	if err != nil {
		return err
	}
	contextMiB, err := f.contextMiB()
	if err != nil {
		return err
	}
	node := nvml.New(nvml.Driver{Root: f.driverRoot, RootMount: f.driverRootMount, CDIHook: hook})
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("record events: %w", err)
	}
	defer broadcaster.Shutdown()
	d, err := driver.New(driver.Config{
		NodeName:          f.nodeName,
		PodUID:            types.UID(f.podUID),
		DataDir:           f.dataDir(),
		RegistrarDir:      f.registrarDir,
		Layout:            layout,
		Hardware:          node,
		Partitioner:       node,
		Client:            client,
		Events:            broadcaster.NewRecorder(scheme.Scheme, v1alpha1.DriverName),
		DiscoveryInterval: f.discovery,
		Processes:         node.Monitor(),
		ContextMiB:        contextMiB,
		Watcher:           node.Watch(),
		Taints:            f.taints(),
		Traces:            traces.provider,
		// Where a device plugin gives out the same GPUs, only the administrator knows whether they are the same.
		BesideDevicePlugin: f.beside,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if err := serveHealth(ctx, f.healthAddress, d); err != nil {
			cancel(err)
		}
	}()
	go preflight.Tell(ctx, preflightOf(f, node, client), d.Ready, func(reason, note string) { d.WarnNode(reason, "Preflight", note) })
	go saveMemory(ctx, d.Ready)
	if err := d.Start(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// garbagePercent is GOGC of a plugin that serves, where the environment does not give it: it is on every node, and has little to do.
const garbagePercent = 50

// saveMemory has garbage collected more often once the plugin serves: until then others wait for it.
func saveMemory(ctx context.Context, ready func() error) {
	serves := func(context.Context) (bool, error) { return ready() == nil, nil }
	if err := wait.PollUntilContextCancel(ctx, time.Second, false, serves); err == nil && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// install puts onto the host what containers and the container runtime use from there.
func install(f flags) (cdi.Layout, string, error) {
	libraries := filepath.Join(f.dataDir(), "lib")
	library, err := driver.Install(f.preloadLibrary, libraries)
	if err != nil {
		return cdi.Layout{}, "", err
	}
	list, err := driver.InstallPreloadList(cdi.ContainerLibrary, libraries)
	if err != nil {
		return cdi.Layout{}, "", err
	}
	hook, err := driver.Install(f.cdiHook, filepath.Join(f.dataDir(), "bin"))
	if err != nil {
		return cdi.Layout{}, "", err
	}
	return cdi.Layout{
		SpecDir:     f.cdiDir,
		SharesDir:   filepath.Join(f.runDir, "shares"),
		Library:     library,
		PreloadList: list,
	}, hook, nil
}

// newClient has each request made by what wrap makes of the transport, if it is not nil.
func newClient(kubeconfig string, wrap transport.WrapperFunc) (kubernetes.Interface, error) {
	load := rest.InClusterConfig
	if kubeconfig != "" {
		load = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	config, err := load()
	if err != nil {
		return nil, fmt.Errorf("configure the Kubernetes client: %w", err)
	}
	// By default 5 requests a second, and a node may have a thousand claims to ask of. The driver limits how many it asks at
	// a time, and the API server how many it answers.
	config.QPS = -1
	config.Wrap(wrap)
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(config, "aliquot-kubelet-plugin"))
	if err != nil {
		return nil, fmt.Errorf("make the Kubernetes client: %w", err)
	}
	return client, nil
}

// serveHealth answers the kubelet's probes: /healthz while the kubelet could reach the plugin, /readyz with the reason
// when it cannot prepare claims. /metrics is for Prometheus.
func serveHealth(ctx context.Context, address string, d *driver.Driver) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", answer(d.Alive))
	mux.HandleFunc("/readyz", answer(func(context.Context) error { return d.Ready() }))
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.Gatherers{registry, d.Metrics()}, promhttp.HandlerOpts{}))
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	klog.FromContext(ctx).Info("Serving health", "address", address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health on %s: %w", address, err)
	}
	return nil
}

// answer tells whether a check passes, and if not why.
func answer(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		if err := check(request.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	}
}
