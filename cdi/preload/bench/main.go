// Command bench measures what the preload library adds to the calls it wraps. It
// measures no real driver, whose calls take longer, and no contention.
//
// Most series run on a driver that does next to nothing, since the simulated one
// makes system calls whose time varies by more than what is looked for; the
// simulated driver has series of its own, of which that with 0 live is the one with system calls.
//
// Run it from the root of the repository, as root: go run ./cdi/preload/bench
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"aliquot.dev/aliquot/e2e/simdriver"
)

const (
	sharesDir = "aliquot-shares" // compiled into the library; relative to the program's folder
	gpu       = "GPU-00000001-aaaa-bbbb-cccc-0123456789ab"
	holders   = 63 // and the one that is measured: 64 processes
	mib       = 1 << 20
)

// Hardware whose contexts cost nothing.
const hardware = `
driverVersion: 580.95.05
nvmlVersion: 13.580.95.05
cudaVersion: "13.0"
gpus:
- {model: t4, uuid: ` + gpu + `, serial: "1000", pci: {busID: "00000000:01:00.0", deviceID: 515379422}}
`

// A series is one thing that is measured bare and with the library.
type series struct {
	name    string
	args    []string
	target  float64 // ns added, at most
	holders int     // other processes with an allocation
	driver  string  // "null" or "simulated"
	cores   int     // percent of the share
}

var all = []series{
	{"preload_alloc_free_added_0_live", []string{"alloc", "0", "4096"}, 200, 0, "null", 100},
	{"preload_alloc_free_added_1000_live", []string{"alloc", "1000", "4096"}, 200, 0, "null", 100},
	{"preload_alloc_free_added_10000_live", []string{"alloc", "10000", "4096"}, 200, 0, "null", 100},
	{"preload_alloc_free_added_100000_live", []string{"alloc", "100000", "4096"}, 200, 0, "null", 100},
	{"preload_alloc_free_added_2MiB_0_live", []string{"alloc", "0", "2097152"}, 200, 0, "null", 100},
	{"preload_process_start_added", []string{"start"}, 200_000, 0, "null", 100},
	// Kernels take no time on that driver, and the program rests between batches: a limit of cores has budget left.
	{"preload_launch_added_no_core_limit", []string{"launch"}, 10, 0, "null", 100},
	{"preload_launch_added_core_limit", []string{"launch"}, 40, 0, "null", 50},
	{"preload_mem_get_info_added_1_process", []string{"info"}, 100, 0, "null", 100},
	// With nothing else live every pair of calls takes a block from the hardware and gives it back.
	{"preload_alloc_free_added_0_live_simulated", []string{"alloc", "0", "4096"}, 200, 0, "simulated", 100},
	{"preload_alloc_free_added_1000_live_simulated", []string{"alloc", "1000", "4096"}, 200, 0, "simulated", 100},
	{"preload_alloc_free_added_10000_live_simulated", []string{"alloc", "10000", "4096"}, 200, 0, "simulated", 100},
	{"preload_mem_get_info_added_simulated", []string{"info"}, 100, 0, "simulated", 100},
	// Last: slots that were ever used are added up from then on.
	{"preload_alloc_free_added_64_processes", []string{"alloc", "0", "4096"}, 200, holders, "null", 100},
	{"preload_mem_get_info_added_64_processes", []string{"info"}, 100, holders, "null", 100},
}

func main() {
	pairs := flag.Int("pairs", 11, "how many processes with the library, and without it, a series has")
	source := flag.String("dir", "cdi/preload", "the folder of the library's Makefile")
	focus := flag.String("focus", ".", "a regular expression: only series whose name matches")
	flag.Parse()
	if err := bench(*source, *pairs, *focus); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(source string, pairs int, focus string) error {
	matching, err := regexp.Compile(focus)
	if err != nil {
		return fmt.Errorf("-focus: %w", err)
	}
	dir, err := os.MkdirTemp("", "aliquot-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := setUp(source, dir)
	if err != nil {
		return err
	}
	describe(pairs)
	for _, series := range all {
		if !matching.MatchString(series.name) {
			continue
		}
		if err := s.measure(series, pairs); err != nil {
			return fmt.Errorf("%s: %w", series.name, err)
		}
	}
	return nil
}

func describe(pairs int) {
	model := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("machine: %s, %d CPUs, load %s\n", model, runtime.NumCPU(), strings.TrimSpace(string(load)))
	fmt.Printf("method: %d processes a series; each makes 1001 batches of 50 calls past the library and 1001 with it, in turn, and gives the median difference; added is the median of the processes\n", pairs)
	fmt.Println("control: as many processes without the library, where both are the same calls")
}

// setting is what the measured programs run in.
type setting struct {
	dir, library, program string
	drivers               map[string]string // folders with a libcuda.so.1
}

func setUp(source, dir string) (*setting, error) {
	hw, err := simdriver.Parse([]byte(hardware))
	if err != nil {
		return nil, err
	}
	root, err := simdriver.NewRoot(context.Background(), filepath.Join(dir, "driver"), hw)
	if err != nil {
		return nil, err
	}
	s := &setting{
		dir:     dir,
		library: filepath.Join(dir, "lib/libaliquot.so"),
		program: filepath.Join(dir, "bench"),
		drivers: map[string]string{"simulated": root.LibraryDir(), "null": filepath.Join(dir, "null")},
	}
	if err := os.Mkdir(s.drivers["null"], 0o755); err != nil {
		return nil, err
	}
	if err := run("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-fvisibility=hidden",
		"-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(s.drivers["null"], "libcuda.so.1"),
		filepath.Join(source, "bench/testdata/null_driver.c")); err != nil {
		return nil, err
	}
	if err := run("make", "-C", source, "OUT="+filepath.Dir(s.library), "SHARES_DIR="+sharesDir); err != nil {
		return nil, err
	}
	if err := run("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-o", s.program,
		filepath.Join(source, "bench/testdata/bench.c"), "-ldl"); err != nil {
		return nil, err
	}
	return s, nil
}

func run(name string, args ...string) error {
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, output)
	}
	return nil
}

func (s *setting) makeShare(memory uint64, cores int) error {
	share := filepath.Join(s.dir, sharesDir, gpu+".bench")
	if err := os.MkdirAll(share, 0o755); err != nil {
		return err
	}
	usage := make([]byte, 4096+256*512)
	for i, value := range []uint32{0x55514c41, 1, 4096, 256, 512} {
		binary.NativeEndian.PutUint32(usage[4*i:], value)
	}
	if err := os.WriteFile(filepath.Join(share, "usage"), usage, 0o666); err != nil {
		return err
	}
	agent := make([]byte, 4096)
	binary.NativeEndian.PutUint32(agent[0:], 0x41514c41)
	binary.NativeEndian.PutUint32(agent[4:], 1)
	if err := os.WriteFile(filepath.Join(share, "agent"), agent, 0o644); err != nil {
		return err
	}
	quota := fmt.Sprintf("version 1\ngpu %s\nmemory_bytes %d\ncore_percent %d\ncore_policy Fixed\npriority 0\n", gpu, memory, cores)
	return os.WriteFile(filepath.Join(share, "quota"), []byte(quota), 0o644)
}

func (s *setting) command(driver string, preload bool, args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+s.drivers[driver])
	if preload {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+s.library)
	}
	cmd.Stderr = os.Stderr
	return cmd
}

// once runs the program and returns the numbers that it prints.
func (s *setting) once(driver string, preload bool, args []string) ([]float64, error) {
	output, err := s.command(driver, preload, args...).Output()
	if err != nil {
		return nil, err
	}
	var values []float64
	for _, field := range strings.Fields(string(output)) {
		value, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// hold starts a process that has memory of the share until it is released.
func (s *setting) hold(driver string) (release func(), err error) {
	cmd := s.command(driver, true, "hold", strconv.Itoa(2*mib))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	release = func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // it ends by its closed input; nothing depends on how
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		release()
		return nil, fmt.Errorf("start a process that holds memory: %w", err)
	}
	return release, nil
}

func (s *setting) measure(series series, pairs int) error {
	if err := s.makeShare(8<<30, series.cores); err != nil {
		return err
	}
	for range series.holders {
		release, err := s.hold(series.driver)
		if err != nil {
			return err
		}
		defer release()
	}
	var all []sample
	for range pairs {
		sample, err := s.calls(series)
		if err != nil {
			return err
		}
		all = append(all, sample)
	}
	values := func(of func(sample) float64) []float64 {
		var values []float64
		for _, sample := range all {
			values = append(values, of(sample))
		}
		return values
	}
	added := values(func(s sample) float64 { return s.added })
	value, verdict := median(added), "ok"
	if value > series.target {
		verdict = "short"
	}
	control := values(func(s sample) float64 { return s.control })
	fmt.Printf("%s on the %s driver: bare %.0f ns, with the library %.0f ns, added %.0f to %.0f; control %.0f to %.0f\n",
		strings.Join(series.args, " "), series.driver,
		median(values(func(s sample) float64 { return s.bare })),
		median(values(func(s sample) float64 { return s.wrapped })),
		slices.Min(added), slices.Max(added), slices.Min(control), slices.Max(control))
	fmt.Printf("bench %s %.0f ns target %.0f %s\n", series.name, value, series.target, verdict)
	return nil
}

// A sample is what one pair has given, in ns. control is what the method gives
// for nothing added: the bare calls of a process without the library, against themselves.
type sample struct {
	bare, wrapped, added, control float64
}

// calls measures in one process, which makes bare and wrapped calls in turn: two
// processes differ by more than what is looked for.
func (s *setting) calls(series series) (sample, error) {
	without, err := s.once(series.driver, false, series.args)
	if err != nil {
		return sample{}, err
	}
	with, err := s.once(series.driver, true, series.args)
	if err != nil {
		return sample{}, err
	}
	return sample{bare: with[0], wrapped: with[1], added: with[2], control: without[2]}, nil
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
