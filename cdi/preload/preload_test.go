package preload_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// sharesDir is compiled into the library under test. It is relative, so that
// each test has its own: the working directory of its programs.
const sharesDir = "aliquot-shares"

// built is what TestMain has compiled.
var built struct {
	dir     string
	library string
	preload string // what LD_PRELOAD is set to
}

var sanitizer = flag.String("sanitizer", "", "compile the library and the programs with address, undefined or thread, or some of them, by commas")

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "aliquot-preload-")
	if err == nil {
		built.dir = dir
		built.library = filepath.Join(dir, "lib", "libaliquot.so")
		built.preload = built.library
		err = run("make", "-C", ".", "-j2", "OUT="+filepath.Dir(built.library), "SHARES_DIR="+sharesDir, "SAN="+*sanitizer)
	}
	if err == nil && *sanitizer != "" {
		// The run-time library of a sanitizer wants to be the first.
		built.preload, err = runtimes(*sanitizer)
		built.preload += " " + built.library
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// runtimes are the libraries of the sanitizers in a list like "address,undefined".
func runtimes(sanitizers string) (string, error) {
	var paths []string
	for _, name := range strings.Split(sanitizers, ",") {
		runtime := map[string]string{"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}[name]
		path, err := exec.Command("gcc", "-print-file-name="+runtime).Output()
		if err != nil {
			return "", err
		}
		paths = append(paths, strings.TrimSpace(string(path)))
	}
	return strings.Join(paths, " "), nil
}

func run(name string, args ...string) error {
	output, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, output)
	}
	return nil
}

// readSources opens every file that make and gcc read, during a test, so that go
// test does not answer from its cache when one of them has changed.
var readSources = sync.OnceValue(func() error {
	for _, pattern := range []string{"Makefile", "exports.map", "*.h", "src/*", "testdata/*.*", "testdata/fuzz/*.c", "testdata/fuzz/*/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if _, err := os.ReadFile(path); err != nil {
				return err
			}
		}
	}
	return nil
})

// programs compiles each source of testdata once.
var programs sync.Map // key: name and flags; value: func() (string, error)

// compile makes a program of testdata/<source>.c, with more flags for gcc.
func compile(t testing.TB, source string, flags ...string) string {
	t.Helper()
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	key := source + " " + strings.Join(flags, " ")
	once, _ := programs.LoadOrStore(key, sync.OnceValues(func() (string, error) {
		out, err := os.MkdirTemp(built.dir, "program-")
		if err != nil {
			return "", err
		}
		path := filepath.Join(out, source)
		args := []string{"-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror",
			"-o", path, filepath.Join("testdata", source+".c")}
		if *sanitizer != "" {
			args = append(args, "-fsanitize="+*sanitizer, "-fno-sanitize-recover=all", "-Wno-tsan")
		}
		return path, run("gcc", append(append(args, flags...), "-ldl", "-pthread")...)
	}))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// hardware is a machine with so many cards of 16 GiB, each of whose contexts
// costs so many MiB.
func hardware(cards, contextMiB int) simdriver.Hardware {
	var text strings.Builder
	text.WriteString("driverVersion: 580.95.05\nnvmlVersion: 13.580.95.05\ncudaVersion: \"13.0\"\ngpus:\n")
	for i := range cards {
		fmt.Fprintf(&text, "- {model: t4, uuid: %s, serial: \"%d\", pci: {busID: \"00000000:0%d:00.0\", deviceID: 515379422}}\n",
			uuid(i), 1000+i, i+1)
	}
	hw, err := simdriver.Parse([]byte(text.String()))
	if err != nil {
		panic(err)
	}
	for i := range hw.GPUs {
		hw.GPUs[i].ContextMiB = contextMiB
	}
	return hw
}

func uuid(card int) string {
	return fmt.Sprintf("GPU-%08x-aaaa-bbbb-cccc-0123456789ab", card+1)
}

// machine is a simulated machine, and the directory in which the programs of
// one container run.
type machine struct {
	root *simdriver.Root
	dir  string
}

// newMachine is one whose contexts cost nothing, so that the ledger holds
// allocations only.
func newMachine(t testing.TB, cards int) *machine {
	t.Helper()
	return newMachineOf(t, hardware(cards, 0))
}

func newMachineOf(t testing.TB, hw simdriver.Hardware) *machine {
	t.Helper()
	root, err := simdriver.NewRoot(context.Background(), filepath.Join(t.TempDir(), "driver"), hw)
	if errors.Is(err, simdriver.ErrNotRoot) || errors.Is(err, simdriver.ErrNoCompiler) {
		t.Skipf("the simulated driver cannot be made here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{root: root, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(m.dir, sharesDir), 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

// environ is the environment of a program, with or without the library.
func (m *machine) environ(preload bool) []string {
	env := append(os.Environ(), "LD_LIBRARY_PATH="+m.root.LibraryDir())
	if preload {
		env = append(env, "LD_PRELOAD="+built.preload)
	}
	return env
}

// command is a program in the container.
func (m *machine) command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = m.dir
	cmd.Env = m.environ(true)
	return cmd
}

// ledger is what the hardware says of a card, after the dead have been freed.
func (m *machine) ledger(t testing.TB, card int) simdriver.Usage {
	t.Helper()
	ledger, err := m.root.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	return ledger.GPUs[card].Usage
}

// checkLedger compares what the hardware has given out with what it should.
func (m *machine) checkLedger(t testing.TB, card int, want uint64) {
	t.Helper()
	if got := m.ledger(t, card).Used; got != want {
		t.Errorf("the hardware has given out %d MiB of card %d, want %d", got>>20, card, want>>20)
	}
}
