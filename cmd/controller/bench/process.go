package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"aliquot.dev/aliquot/e2e/bench"
	"aliquot.dev/aliquot/e2e/release"
)

const (
	allowAll = "allow-all" // the argument that makes this program a server that allows everything
	program  = "bin/aliquot-controller"
)

// cpus are lists of CPUs, in taskset's words.
type cpus struct{ server, others string }

// setApart leaves one CPU to the measured server: this process and all that it starts keep off it. A machine with one
// CPU has nothing to set apart.
func setApart(ctx context.Context) (cpus, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return cpus{}, fmt.Errorf("ask which CPUs there are: %w", err)
	}
	var all []string
	for i := range 64 * len(set) {
		if set.IsSet(i) {
			all = append(all, strconv.Itoa(i))
		}
	}
	if len(all) == 1 {
		return cpus{server: all[0], others: all[0]}, nil
	}
	last := len(all) - 1
	c := cpus{server: all[last], others: strings.Join(all[:last], ",")}
	runtime.GOMAXPROCS(last)
	output, err := exec.CommandContext(ctx, "taskset", "--all-tasks", "--pid", "--cpu-list", c.others, strconv.Itoa(os.Getpid())).CombinedOutput()
	if err != nil {
		return cpus{}, fmt.Errorf("keep off CPU %s: %w: %s", c.server, err, output)
	}
	return c, nil
}

// process is a webhook server that is measured.
type process struct {
	*bench.Process
	url    string
	client *http.Client
}

// startAllowAll starts this program again as the server to compare with: the same library, with no check behind it.
func (w *world) startAllowAll(ctx context.Context, c cpus) (*process, error) {
	port, err := bench.FreePort()
	if err != nil {
		return nil, err
	}
	return w.launch(ctx, c, port, "/proc/"+strconv.Itoa(os.Getpid())+"/exe", allowAll, w.certificates.dir, port)
}

// serveAllowAll is that server.
func serveAllowAll(certificates, port string) error {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{Port: number, CertDir: certificates})
	handler := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })
	for _, path := range []string{"/default-claim", "/validate-claim"} {
		server.Register(path, &webhook.Admission{Handler: handler})
	}
	return server.Start(context.Background())
}

// startController starts the program as the chart does, but for the certificates and its rights.
func (w *world) startController(ctx context.Context, c cpus) (*process, error) {
	var ports [3]string
	for i := range ports {
		port, err := bench.FreePort()
		if err != nil {
			return nil, err
		}
		ports[i] = port
	}
	return w.launch(ctx, c, ports[0], program, "--namespace="+release.Namespace, "--certificates-dir="+w.certificates.dir, "--webhook-port="+ports[0],
		"--metrics-address=127.0.0.1:"+ports[1], "--health-address=127.0.0.1:"+ports[2], "-v=2")
}

// launch starts a server with one CPU and waits until it serves.
func (w *world) launch(ctx context.Context, c cpus, port, program string, args ...string) (*process, error) {
	cmd := exec.Command("taskset", append([]string{"--cpu-list", c.server, program}, args...)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "KUBECONFIG="+w.Kubeconfig)
	launched, err := bench.Launch(cmd, w.dir)
	if err != nil {
		return nil, err
	}
	p := &process{Process: launched, url: "https://" + net.JoinHostPort("127.0.0.1", port), client: w.certificates.client()}
	if err := p.awaitServing(ctx, port); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func (p *process) awaitServing(ctx context.Context, port string) error {
	for {
		connection, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return connection.Close()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Ended:
			return p.Why()
		}
	}
}

// certificates are what the servers serve, signed by nobody else.
type certificates struct {
	dir  string
	pool *x509.CertPool
}

func newCertificates(dir string) (certificates, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificates{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return certificates{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return certificates{}, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return certificates{dir: dir, pool: pool}, errors.Join(
		os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}

// client talks to webhooks as the API server does: HTTP/1.1 (k8s.io/apiserver/pkg/util/webhook/client.go) with at most 25
// idle connections kept (k8s.io/client-go/transport/cache.go).
func (c certificates) client() *http.Client {
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.pool, NextProtos: []string{"http/1.1"}}, MaxIdleConnsPerHost: 25},
	}
}
