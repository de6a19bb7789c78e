package driver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Install copies a program or library from the plugin's image to where the host and its containers can use it, and
// returns its path, <dir>/<version>/<name>. The version is that of the content: a file that running pods have mounted is never written
// again, and an upgrade puts the new one beside it.
func Install(source, dir string) (string, error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return "", fmt.Errorf("install %s: %w", source, err)
	}
	version := fmt.Sprintf("%x", sha256.Sum256(content))[:16]
	target := filepath.Join(dir, version, filepath.Base(source))
	_, err = os.Lstat(target)
	switch {
	case err == nil:
		return target, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("install %s: %w", target, err)
	}
	return target, writeOnce(target, content, 0o755)
}

// InstallPreloadList writes the file that becomes /etc/ld.so.preload in a container and returns its path.
func InstallPreloadList(library, dir string) (string, error) {
	target := filepath.Join(dir, "ld.so.preload")
	if err := writeOnce(target, []byte(library+"\n"), 0o644); err != nil {
		return "", err
	}
	return target, nil
}

func writeOnce(target string, content []byte, mode os.FileMode) error {
	dir := filepath.Dir(target)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install %s: %w", target, err)
	}
	if err := renameio.WriteFile(target, content, mode, renameio.WithTempDir(dir), renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("install %s: %w", target, err)
	}
	return nil
}
