package deployments

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const (
	chart = "helm/aliquot"

	// What every rendering is asked for, unless a test says otherwise.
	release   = "aliquot"
	namespace = "aliquot-system"
)

// helm runs the program and returns what it wrote. It sees no cluster and none of the user's settings.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := helmProgram()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	home := t.TempDir()
	cmd.Env = []string{
		"HOME=" + home,
		"KUBECONFIG=" + filepath.Join(home, "none"),
		"HELM_CACHE_HOME=" + filepath.Join(home, "cache"),
		"HELM_CONFIG_HOME=" + filepath.Join(home, "config"),
		"HELM_DATA_HOME=" + filepath.Join(home, "data"),
	}
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w\n%s", args[0], err, stderr.String())
	}
	return stdout.String(), nil
}

// template renders the chart for the default release, for a cluster of the reference version.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helm(t, append([]string{"template", release, chart, "--namespace", namespace, "--kube-version", "1.37.2"}, args...)...)
}

// mustTemplate renders the chart where nothing should go wrong.
func mustTemplate(t *testing.T, args ...string) string {
	t.Helper()
	rendered, err := template(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

// helmProgram is $HELM, else helm in $PATH, else one built, once, from the module that the embedded cluster pins it in.
var helmProgram = sync.OnceValues(func() (string, error) {
	if program := os.Getenv("HELM"); program != "" {
		return program, nil
	}
	if program, err := exec.LookPath("helm"); err == nil {
		return program, nil
	}
	return buildHelm(context.Background())
})

// buildHelm builds into the user's cache. The flags are those of the cluster's own build, so that either finds the
// other's work in Go's build cache. Go leaves a binary that is up to date alone, so only the first time takes minutes,
// and an old one is never mistaken for the pinned one.
func buildHelm(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(cache, "aliquot", "deployments", "helm")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w", "-o", program, "helm.sh/helm/v4/cmd/helm")
	cmd.Dir = filepath.Join("..", "e2e", "cluster", "programs", "helm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build helm: %w\n%s", err, output)
	}
	return program, nil
}
