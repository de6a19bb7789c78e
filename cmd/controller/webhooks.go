package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// addWebhooks serves the webhooks on each replica as soon as there are certificates.
func addWebhooks(mgr manager.Manager, f flags, handlers map[string]admission.Handler) error {
	ready, err := addCertificates(mgr, f)
	if err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{Port: f.webhookPort, CertDir: f.certificatesDir})
	for path, handler := range handlers {
		server.Register(path, &webhook.Admission{Handler: handler})
	}
	if err := mgr.AddReadyzCheck("webhooks", server.StartedChecker()); err != nil {
		return err
	}
	return mgr.Add(everywhere(func(ctx context.Context) error {
		select {
		case <-ready:
		case <-ctx.Done():
			return nil
		}
		if err := server.Start(ctx); err != nil {
			return fmt.Errorf("serve webhooks: %w", err)
		}
		return nil
	}))
}
