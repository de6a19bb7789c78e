package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInstallPutsEachVersionBesideTheOthers(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	image, host := filepath.Join(t.TempDir(), "libaliquot.so"), filepath.Join(t.TempDir(), "lib")
	write(t, image, "first")
	first, err := Install(image, host)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	if before.Mode() != 0o755 || filepath.Base(first) != "libaliquot.so" || !strings.HasPrefix(first, host+"/") {
		t.Errorf("%s has mode %v", first, before.Mode())
	}
	again, err := Install(image, host)
	if err != nil {
		t.Fatal(err)
	}
	if now, err := os.Stat(again); err != nil || !os.SameFile(before, now) {
		t.Errorf("the same version was written again at %s: %v", again, err)
	}
	write(t, image, "second")
	second, err := Install(image, host)
	if err != nil {
		t.Fatal(err)
	}
	if read(t, first) != "first" || read(t, second) != "second" {
		t.Errorf("%s is %q, %s is %q", first, read(t, first), second, read(t, second))
	}
	if files := list(t, host); len(files) != 2 {
		t.Errorf("files: %v", files)
	}
}

func TestInstallPreloadList(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := filepath.Join(t.TempDir(), "lib")
	for range 2 {
		path, err := InstallPreloadList("/run/aliquot/lib/libaliquot.so", dir)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); got != "/run/aliquot/lib/libaliquot.so\n" || info.Mode() != 0o644 {
			t.Errorf("%s has mode %v and holds %q", path, info.Mode(), got)
		}
	}
}

func TestInstallErrorsNameTheFile(t *testing.T) {
	root := t.TempDir()
	missing, image, blocked := filepath.Join(root, "missing"), filepath.Join(root, "image"), filepath.Join(root, "blocked")
	write(t, image, "program")
	write(t, blocked, "a file where the directory has to be")
	_, first := Install(missing, root)
	_, second := Install(image, blocked)
	_, third := InstallPreloadList("/lib", blocked)
	for want, err := range map[string]error{"install " + missing + ": ": first, "install " + blocked + "/": second, "install " + blocked + "/ld.so.preload: ": third} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}
