package programs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Build makes sure that every program is there and returns the directory that
// holds them, under the user's cache directory. The directory is named by what
// goes into it, so a second call costs nothing and a change of any version
// builds anew. Callers may run at once, in one process or many: one of them
// builds. A cold build takes many minutes; progress goes to log.
func Build(ctx context.Context, log io.Writer) (string, error) {
	if err := installPackages(ctx, log); err != nil {
		return "", err
	}
	b, err := newBuilder(ctx, log)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(b.bin()); err == nil {
		return b.bin(), nil
	}
	unlock, err := lock(b.target + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(b.bin()); err == nil {
		return b.bin(), nil
	}
	return b.bin(), b.buildAll(ctx)
}

type builder struct {
	source  string // folder of the nested modules
	target  string // folder to make, named by its content
	version string // of Kubernetes
	log     io.Writer
}

func newBuilder(ctx context.Context, log io.Writer) (*builder, error) {
	source, err := sourceFolder()
	if err != nil {
		return nil, err
	}
	gomod, err := os.ReadFile(filepath.Join(source, "kubernetes", "go.mod"))
	if err != nil {
		return nil, err
	}
	version, err := requiredVersion(gomod, "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	compiler, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOARCH").Output()
	if err != nil {
		return nil, fmt.Errorf("ask the Go version: %w", err)
	}
	key, err := contentKey(source, version, string(compiler))
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache = filepath.Join(cache, "aliquot", "cluster", "programs")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	return &builder{source: source, target: filepath.Join(cache, key), version: version, log: log}, nil
}

// contentKey hashes all that decides what the binaries are: the pinned
// modules, the compiler and the flags.
func contentKey(source, version, compiler string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, compiler)
	for _, p := range all {
		fmt.Fprintln(hash, p, p.arguments(version))
	}
	for _, module := range modules() {
		for _, name := range []string{"go.mod", "go.sum"} {
			content, err := os.ReadFile(filepath.Join(source, module, name))
			if err != nil {
				return "", err
			}
			fmt.Fprintln(hash, module, name, len(content))
			hash.Write(content)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

func (b *builder) bin() string { return filepath.Join(b.target, "bin") }

// buildAll builds into a temporary folder and renames it last, so that a
// target that exists is whole.
func (b *builder) buildAll(ctx context.Context) error {
	fmt.Fprintf(b.log, "building the programs of Kubernetes %s into %s; the first time takes many minutes\n", b.version, b.bin())
	partial := b.target + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	for i, p := range all {
		start := time.Now()
		if err := b.build(ctx, p, filepath.Join(partial, "bin", p.name)); err != nil {
			return err
		}
		fmt.Fprintf(b.log, "  %2d/%d %-24s %s\n", i+1, len(all), p.name, time.Since(start).Round(100*time.Millisecond))
	}
	return os.Rename(partial, b.target)
}

func (b *builder) build(ctx context.Context, p program, output string) error {
	args := append(p.arguments(b.version), "-o", output, p.pkg)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(b.source, p.module)
	// The nested module decides alone: no workspace, no flags of the caller.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	if p.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	var messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &messages, &messages
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.name, err, strings.TrimSpace(messages.String()))
	}
	return nil
}

// lock takes an advisory lock on a file and waits for it. The kernel drops it
// when the process dies.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}
