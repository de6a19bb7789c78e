package preload_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// elsewhere is another system than this one: programs and the driver are
// compiled for it, and run is the beginning of every command line.
type elsewhere struct {
	compiler string
	flags    []string
	library  string
	run      func(libraries ...string) []string // folders to search
}

func (e elsewhere) compile(t *testing.T, out, source string, flags ...string) string {
	t.Helper()
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-o", out, filepath.Join("testdata", source)}, flags...)
	if err := run(e.compiler, append(append(args, "-ldl", "-pthread"), e.flags...)...); err != nil {
		t.Fatal(err)
	}
	return out
}

// machine is one whose driver is of that system. It is compiled once.
func (e elsewhere) machine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, 1)
	dir := filepath.Join(built.dir, "driver-"+e.compiler)
	if _, err := os.Stat(dir); err != nil {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := simdriver.BuildCUDA(context.Background(), dir, e.compiler, e.flags...); err != nil {
			t.Fatal(err)
		}
	}
	if err := run("cp", filepath.Join(dir, "libcuda.so.1"), m.root.LibraryDir()+"/"); err != nil {
		t.Fatal(err)
	}
	return m
}

func (e elsewhere) command(m *machine, program string, args ...string) *exec.Cmd {
	line := append(e.run(m.root.LibraryDir()), program)
	cmd := exec.Command(line[0], append(line[1:], args...)...)
	cmd.Dir = m.dir
	return cmd
}

// checkLimit has a program of that system allocate, and come to its limit, by
// every path to the driver.
func (e elsewhere) checkLimit(t *testing.T) {
	t.Helper()
	program := e.compile(t, filepath.Join(t.TempDir(), "client"), "client.c")
	m := e.machine(t)
	s := m.newShare(t, 0, "one", 16*mib)
	for _, how := range []string{"dlsym", "procaddr"} {
		c := (&client{cmd: e.command(m, program, how)}).start(t)
		for _, command := range []string{"init", "device 0", "alloc 0 6291456", "async 1 2097152 0", "create 0 2097152 1 0", "alloc 2 512"} {
			c.want(t, success, "%s", command)
		}
		c.want(t, outOfMemory, "alloc 3 %d", 6*mib)
		c.want(t, figures(4*mib, 16*mib), "info")
		s.checkCharged(t, 12*mib)
		m.checkLedger(t, 0, 12*mib)
		c.want(t, success, "free 0")
		s.checkCharged(t, 6*mib)
		c.want(t, success, "fork")
		c.want(t, "child 0", "exit 0")
		c.exit(t)
		if c.stderr.Len() > 0 {
			t.Errorf("stderr is %q", c.stderr.String())
		}
	}
}

// glibc231 is a folder with Debian bullseye's C library and its headers, which
// is fetched once and then kept in the user's cache.
func glibc231(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no place for an old C library: %v", err)
	}
	dir := filepath.Join(cache, "aliquot", "glibc-2.31")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	work, err := fetchBullseye(filepath.Dir(dir))
	if err != nil {
		t.Skipf("an old C library cannot be had here: %v", err)
	}
	if err := os.Rename(work, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// fetchBullseye asks the mirror that this machine has its packages from.
func fetchBullseye(parent string) (string, error) {
	sources, err := os.ReadFile("/etc/apt/sources.list.d/debian.sources")
	if err != nil {
		return "", err
	}
	stanza, _, _ := strings.Cut(string(sources), "\n\n")
	stanza = regexp.MustCompile(`(?m)^Suites:.*$`).ReplaceAllString(stanza, "Suites: bullseye")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(parent, "glibc-")
	if err != nil {
		return "", err
	}
	apt, err := os.MkdirTemp("", "apt-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(apt)
	if err := os.WriteFile(filepath.Join(apt, "old.sources"), []byte(stanza+"\n"), 0o644); err != nil {
		return "", err
	}
	script := fmt.Sprintf(`set -e
cd %[1]s && mkdir -p lists/partial cache/archives/partial
apt="apt-get -q -o APT::Sandbox::User=root -o Dir::Etc::sourcelist=%[1]s/old.sources -o Dir::Etc::sourceparts=/dev/null
  -o Dir::State::lists=%[1]s/lists -o Dir::Cache=%[1]s/cache -o Acquire::Languages=none
  -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::http::Timeout=20"
timeout 100 $apt update
timeout 100 $apt download libc6/bullseye libc6-dev/bullseye linux-libc-dev/bullseye
for package in *.deb; do dpkg-deb -x $package %[2]s; done`, apt, work)
	if err := run("bash", "-c", script); err != nil {
		return "", err
	}
	return work, relink(work)
}

// relink lets absolute links point into the folder.
func relink(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink == 0 {
			return err
		}
		target, err := os.Readlink(path)
		if err != nil || !filepath.IsAbs(target) {
			return err
		}
		target, err = filepath.Rel(filepath.Dir(path), filepath.Join(root, target))
		if err != nil {
			return err
		}
		os.Remove(path)
		return os.Symlink(target, path)
	})
}

// Programs, driver and C library are all as on Debian 11, and the library is the
// one that is made here: there it must load, and find what has since moved.
func TestOnAnOldCLibrary(t *testing.T) {
	if *sanitizer != "" {
		t.Skip("a sanitizer's run-time library is not that old")
	}
	root := glibc231(t)
	lib, dev := filepath.Join(root, "lib/x86_64-linux-gnu"), filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	e := elsewhere{
		compiler: "gcc",
		flags:    []string{"--sysroot=" + root, "-B" + dev + "/", "-L" + dev, "-L" + lib},
		library:  built.library,
	}
	e.run = func(libraries ...string) []string {
		return []string{filepath.Join(lib, "ld-2.31.so"), "--library-path", strings.Join(append([]string{lib}, libraries...), ":"),
			"--preload", e.library}
	}
	e.checkLimit(t)
}

// aarch64 is that processor, emulated.
func aarch64(t *testing.T) elsewhere {
	t.Helper()
	e := elsewhere{compiler: "aarch64-linux-gnu-gcc"}
	for _, program := range []string{e.compiler, "qemu-aarch64"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("aarch64 is not tried (packages gcc-aarch64-linux-gnu, qemu-user): %v", err)
		}
	}
	if *sanitizer != "" {
		t.Skip("no sanitizer's run-time library for aarch64")
	}
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(built.dir, "aarch64-tried")
	if err := run("make", "-C", ".", "-j2", "CC="+e.compiler, "OUT="+dir, "SHARES_DIR="+sharesDir); err != nil {
		t.Fatal(err)
	}
	e.library = filepath.Join(dir, "libaliquot.so")
	e.run = func(libraries ...string) []string {
		return []string{"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", "LD_PRELOAD=" + e.library,
			"-E", "LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}
	}
	return e
}

func TestOnAarch64TheLimitIsHeld(t *testing.T) {
	aarch64(t).checkLimit(t)
}

// The stub that filters dlsym is assembly. Whatever is looked up, by whatever
// path and from whatever library, the answer is that of this machine.
func TestOnAarch64LookupsAreTheSame(t *testing.T) {
	e := aarch64(t)
	here := newMachine(t, 1)
	here.newShare(t, 0, "one", 8*mib)
	want, err := here.command(t, compile(t, "lookup", nextLibraries(t, "gcc")...)).Output()
	if err != nil {
		t.Fatal(err)
	}
	there := e.machine(t)
	there.newShare(t, 0, "one", 8*mib)
	got, err := e.command(there, e.compile(t, filepath.Join(t.TempDir(), "lookup"), "lookup.c", nextLibraries(t, e.compiler)...)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("lookups differ (-here +aarch64):\n%s", diff)
	}
}
