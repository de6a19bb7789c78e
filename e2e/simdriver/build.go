package simdriver

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed native
var native embed.FS

// The names that Build gives to what it makes.
const (
	libCUDA       = "libcuda.so.1"
	libNVML       = "libnvidia-ml.so.1"
	nvidiaSMI     = "nvidia-smi"
	ledgerProgram = "ledger"
)

// shared is what both libraries are made of, besides their own files.
var shared = []string{"root.c", "hardware.c", "ledger.c", "grant.c", "process.c", "mig_state.c", "mig_rules.c"}

// compute is how the cards work, which all but nvidia-smi know too.
const compute = "compute*.c"

// product is one file that gcc makes of the sources that match the patterns.
type product struct {
	name    string
	sources []string
	flags   []string
}

// A library binds its own calls to itself: without -Bsymbolic a preloaded
// library that exports cuMemAlloc_v2 would be what cuGetProcAddress hands out.
// It is never unloaded, since closing the ledger would drop its locks.
func libraryFlags(soname string) []string {
	return []string{"-shared", "-fPIC", "-fvisibility=hidden",
		"-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-soname," + soname}
}

var products = []product{
	{libCUDA, append([]string{"cuda_*.c", compute}, shared...), append(libraryFlags(libCUDA), "-DSIM_DRIVER")},
	{libNVML, append([]string{"nvml_*.c", "faults.c", "mig_change.c", compute}, shared...), libraryFlags(libNVML)},
	{ledgerProgram, append([]string{"ledger_*.c", "mig_change.c", compute}, shared...), nil},
	{nvidiaSMI, []string{"nvidia_smi.c"}, []string{"-Wl,-rpath,$ORIGIN/../lib/x86_64-linux-gnu", "-ldl"}},
}

// ErrNoCompiler says that gcc is not installed; tests may skip on it.
var ErrNoCompiler = errors.New("gcc is not installed")

// Build compiles the libraries and programs and puts them in dir. The work is
// kept in the user's cache under a name made of the sources, so only a change
// of them compiles again; several processes may call it at once.
func Build(ctx context.Context, dir string) error {
	cache, err := built(ctx)
	if err != nil {
		return err
	}
	for _, p := range products {
		if err := copyFile(filepath.Join(cache, p.name), filepath.Join(dir, p.name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// BuildCUDA compiles the CUDA library alone and puts it in dir, which must be
// empty: by another compiler and with more flags, for another processor or an
// older C library. It is not kept.
func BuildCUDA(ctx context.Context, dir, compiler string, flags ...string) error {
	src, err := os.MkdirTemp("", "simdriver-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	if err := os.CopyFS(src, native); err != nil {
		return fmt.Errorf("write the sources of the simulated driver: %w", err)
	}
	return products[0].compile(ctx, filepath.Join(src, "native"), dir, compiler, flags...)
}

// built returns the folder of the cache that holds what Build makes.
func built(ctx context.Context) (string, error) {
	sum, err := sourcesSum()
	if err != nil {
		return "", err
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache for the simulated driver: %w", err)
	}
	final := filepath.Join(base, "aliquot", "simdriver", sum)
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(final), "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := compileAll(ctx, work); err != nil {
		return "", err
	}
	// The rename loses against another process that was faster, which made
	// the same thing.
	if err := os.Rename(filepath.Join(work, "out"), final); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return final, nil
}

// sourcesSum names a build: the sources and how they are compiled.
func sourcesSum() (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, products, commonFlags)
	err := fs.WalkDir(native, "native", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := native.ReadFile(name)
		fmt.Fprintf(hash, "%s %d\n%s", name, len(data), data)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil))[:16], err
}

var commonFlags = []string{"-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror"}

func compileAll(ctx context.Context, work string) error {
	if _, err := exec.LookPath("gcc"); err != nil {
		return ErrNoCompiler
	}
	if err := os.CopyFS(work, native); err != nil {
		return fmt.Errorf("write the sources of the simulated driver: %w", err)
	}
	src, out := filepath.Join(work, "native"), filepath.Join(work, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	results := make(chan error, len(products))
	for _, p := range products {
		go func() { results <- p.compile(ctx, src, out, "gcc") }()
	}
	var errs []error
	for range products {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

func (p product) compile(ctx context.Context, src, out, compiler string, flags ...string) error {
	args := append([]string{}, commonFlags...)
	args = append(args, "-o", filepath.Join(out, p.name))
	for _, pattern := range p.sources {
		files, err := filepath.Glob(filepath.Join(src, pattern))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("compile %s: no source matches %s", p.name, pattern)
		}
		args = append(args, files...)
	}
	args = append(args, p.flags...)
	args = append(append(args, "-pthread", "-ldl"), flags...)
	output, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile %s: %w\n%s", p.name, err, strings.TrimSpace(string(output)))
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}
