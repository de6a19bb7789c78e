package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
)

// flags are the controller's settings.
type flags struct {
	namespace          string
	deviceClasses      []string
	certificatesDir    string
	certificatesSecret string
	service            string
	validatingWebhook  string
	mutatingWebhook    string
	webhookPort        int
	metricsAddress     string
	healthAddress      string
	leaderElectionName string
}

func (f *flags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.namespace, "namespace", "", "namespace of this pod (required)")
	fs.StringSliceVar(&f.deviceClasses, "device-classes", nil, "classes of this driver that the webhooks are sent although their names do not end in gpu.aliquot.dev")
	fs.StringVar(&f.certificatesDir, "certificates-dir", "/run/aliquot-controller/certificates", "where tls.crt and tls.key are; written here if there is a --certificates-secret")
	fs.StringVar(&f.certificatesSecret, "certificates-secret", "", "Secret in which certificates are made and rotated; empty if something else makes them")
	fs.StringVar(&f.service, "service", "aliquot-controller", "Service in front of the webhooks, for which certificates are made")
	fs.StringVar(&f.validatingWebhook, "validating-webhook", "aliquot-controller", "ValidatingWebhookConfiguration that is told the certificates' authority")
	fs.StringVar(&f.mutatingWebhook, "mutating-webhook", "aliquot-controller", "MutatingWebhookConfiguration that is told the certificates' authority")
	fs.IntVar(&f.webhookPort, "webhook-port", 9443, "where the webhooks are served")
	fs.StringVar(&f.metricsAddress, "metrics-address", ":8081", "where /metrics is served; 0 serves none")
	fs.StringVar(&f.healthAddress, "health-address", ":8080", "where /healthz and /readyz are served")
	fs.StringVar(&f.leaderElectionName, "leader-election-name", "aliquot-controller", "Lease by which the replica is chosen that runs the controllers")
}

func (f *flags) validate() error {
	if f.namespace == "" {
		return errors.New("--namespace is required: set it to the namespace of this pod")
	}
	if !filepath.IsAbs(f.certificatesDir) {
		return fmt.Errorf("--certificates-dir is %q: want an absolute path", f.certificatesDir)
	}
	if f.webhookPort < 1 || f.webhookPort > 65535 {
		return fmt.Errorf("--webhook-port is %d: want 1 to 65535", f.webhookPort)
	}
	return nil
}
