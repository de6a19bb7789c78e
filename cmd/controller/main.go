// Command aliquot-controller checks classes and claims of this driver when they are made, and those that were there
// before. It wires the packages together and holds no logic of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/admission"
	"aliquot.dev/aliquot/internal/classes"
	"aliquot.dev/aliquot/internal/sharequota"
)

// version is set at link time.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "aliquot-controller:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var f flags
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:           "aliquot-controller",
		Short:         "Check the classes and claims of Aliquot's GPUs.",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PreRunE: func(*cobra.Command, []string) error {
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
	return cmd
}

// run serves until ctx ends.
func run(ctx context.Context, f flags) error {
	logger := klog.FromContext(ctx)
	ctrllog.SetLogger(logger)
	logger.Info("Starting", "version", version)
	mgr, err := newManager(f)
	if err != nil {
		return err
	}
	known, err := newCluster(ctx, mgr.GetCache())
	if err != nil {
		return err
	}
	checker := admission.New(known)
	ledger := sharequota.New(mgr.GetClient(), mgr.GetAPIReader(), known, known.ours)
	handlers := admission.Handlers(checker)
	handlers[admission.PathValidateClaim] = ledger.After(handlers[admission.PathValidateClaim])
	recorder := mgr.GetEventRecorder(v1alpha1.DriverName)
	for _, add := range []func() error{
		func() error { return addWebhooks(mgr, f, handlers) },
		func() error { return classes.New(known.cache, checker, recorder, f.sent).SetupWithManager(mgr) },
		func() error { return classes.NewSlices(uncounted{known}, recorder).SetupWithManager(mgr) },
		func() error { return sharequota.NewReconciler(ledger, recorder).SetupWithManager(mgr) },
	} {
		if err := add(); err != nil {
			return err
		}
	}
	return mgr.Start(ctx)
}

func newManager(f flags) (manager.Manager, error) {
	restConfig, err := config.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mgr, err := manager.New(restConfig, manager.Options{
		Scheme: scheme,
		// Of all that is watched only what is looked at is kept.
		Cache: cache.Options{
			DefaultTransform: kept,
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}: {
					Namespaces: map[string]cache.Config{f.namespace: {}},
					Field:      fields.OneTermEqualSelector("metadata.name", f.certificatesSecret),
				},
				&resourceapi.ResourceSlice{}: {Field: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, v1alpha1.DriverName)},
			},
		},
		Metrics:                       metricsserver.Options{BindAddress: f.metricsAddress},
		HealthProbeBindAddress:        f.healthAddress,
		LeaderElection:                true,
		LeaderElectionID:              f.leaderElectionName,
		LeaderElectionNamespace:       f.namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, err
	}
	return mgr, mgr.AddHealthzCheck("ping", healthz.Ping)
}
