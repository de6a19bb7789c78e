package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// The names of the files in --certificates-dir, and of the keys in the Secret.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// addCertificates makes certificates and keeps them fresh, in a Secret that all replicas share, and tells the webhook
// configurations which authority to trust. Each replica follows the Secret itself, since the kubelet takes a minute to
// refresh a mounted one. The webhook server reads the files again whenever they change. The returned channel is closed
// when the first ones are there.
func addCertificates(mgr manager.Manager, f flags) (<-chan struct{}, error) {
	files := &certificateFiles{mgr: mgr, dir: f.certificatesDir, secret: types.NamespacedName{Namespace: f.namespace, Name: f.certificatesSecret}, ready: make(chan struct{})}
	if f.certificatesSecret == "" {
		return files.ready, mgr.Add(everywhere(files.waitForMounted))
	}
	// Two replicas that make a certificate at once both update the Secret that they have read, and one is refused.
	err := rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:      files.secret,
		CertDir:        f.certificatesDir,
		CAName:         "aliquot-controller",
		CAOrganization: "aliquot",
		DNSName:        fmt.Sprintf("%s.%s.svc", f.service, f.namespace),
		IsReady:        make(chan struct{}),
		Webhooks: []rotator.WebhookInfo{
			{Name: f.validatingWebhook, Type: rotator.Validating},
			{Name: f.mutatingWebhook, Type: rotator.Mutating},
		},
		FieldOwner: "aliquot-controller",
	})
	if err != nil {
		return nil, fmt.Errorf("rotate certificates: %w", err)
	}
	return files.ready, mgr.Add(everywhere(files.follow))
}

// certificateFiles are the certificate and the key that the webhook server reads.
type certificateFiles struct {
	mgr    manager.Manager
	dir    string
	secret types.NamespacedName
	ready  chan struct{}
	closed bool
}

// follow writes what the Secret holds, now and whenever it changes.
func (c *certificateFiles) follow(ctx context.Context) error {
	informer, err := c.mgr.GetCache().GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return fmt.Errorf("watch Secret %s: %w", c.secret, err)
	}
	write := func(object any) {
		if secret, ok := object.(*corev1.Secret); ok && secret.Name == c.secret.Name {
			if err := c.write(secret); err != nil {
				klog.FromContext(ctx).Error(err, "Certificates cannot be written", "secret", c.secret)
			}
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: write, UpdateFunc: func(_, object any) { write(object) }})
	return err
}

// write puts the key before the certificate: what reads a pair that does not fit keeps the old one and tries again.
func (c *certificateFiles) write(secret *corev1.Secret) error {
	certificate, key := secret.Data[certFile], secret.Data[keyFile]
	if len(certificate) == 0 || len(key) == 0 {
		return nil // not made yet
	}
	err := errors.Join(
		os.MkdirAll(c.dir, 0o700),
		renameio.WriteFile(filepath.Join(c.dir, keyFile), key, 0o600),
		renameio.WriteFile(filepath.Join(c.dir, certFile), certificate, 0o600))
	if err == nil && !c.closed {
		c.closed = true
		close(c.ready)
	}
	return err
}

// waitForMounted is for certificates that something else makes: a pod does not start before its Secret is mounted.
func (c *certificateFiles) waitForMounted(context.Context) error {
	for _, name := range []string{certFile, keyFile} {
		if _, err := os.Stat(filepath.Join(c.dir, name)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("find the webhooks' certificate: %w", err)
		}
	}
	close(c.ready)
	return nil
}

// everywhere is a runnable of all replicas, not of the leader alone.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

func (everywhere) NeedLeaderElection() bool { return false }
