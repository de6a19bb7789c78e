package preload_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func checkGolden(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(readFile(t, path), got); diff != "" {
		t.Errorf("%s differs (-golden +got):\n%s", path, diff)
	}
}

func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}

// libraries are the library for this machine and, where there is a compiler for
// it, for the other.
func libraries(t testing.TB) map[string]string {
	t.Helper()
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	made := map[string]string{"this machine": built.library}
	const cross = "aarch64-linux-gnu-gcc"
	if _, err := exec.LookPath(cross); err != nil {
		t.Logf("the library for aarch64 is not checked: %v", err)
		return made
	}
	dir := filepath.Join(built.dir, "aarch64")
	if err := run("make", "-C", ".", "-j2", "CC="+cross, "OUT="+dir); err != nil {
		t.Fatal(err)
	}
	made["aarch64"] = filepath.Join(dir, "libaliquot.so")
	return made
}

var (
	exported = regexp.MustCompile(`(?m)^[0-9a-f]+ [A-TV-Z] (\S+)$`)
	imported = regexp.MustCompile(`(?m)^ +U (\S+)@GLIBC_(\d+)\.(\d+)`)
	needed   = regexp.MustCompile(`NEEDED.*\[(.*)\]`)
)

func TestLibraryExportsOnlyWhatItInterposes(t *testing.T) {
	for arch, library := range libraries(t) {
		t.Run(arch, func(t *testing.T) {
			var names []string
			for _, match := range exported.FindAllStringSubmatch(output(t, "nm", "-D", library), -1) {
				names = append(names, match[1])
			}
			slices.Sort(names)
			checkGolden(t, "testdata/exports.golden", strings.Join(names, "\n")+"\n")
		})
	}
}

func TestLibraryLoadsOnOldSystems(t *testing.T) {
	for arch, library := range libraries(t) {
		t.Run(arch, func(t *testing.T) {
			for _, match := range imported.FindAllStringSubmatch(output(t, "nm", "-D", library), -1) {
				major, _ := strconv.Atoi(match[2])
				minor, _ := strconv.Atoi(match[3])
				if major > 2 || minor > 17 {
					t.Errorf("%s needs glibc %d.%d, newer than 2.17", match[1], major, minor)
				}
			}
			dynamic := output(t, "readelf", "-dW", library)
			var libraries []string
			for _, match := range needed.FindAllStringSubmatch(dynamic, -1) {
				libraries = append(libraries, match[1])
			}
			// The loader is there already; it has the list of objects.
			libraries = slices.DeleteFunc(libraries, func(name string) bool { return strings.HasPrefix(name, "ld-linux-") })
			if diff := cmp.Diff([]string{"libc.so.6"}, libraries); diff != "" {
				t.Errorf("needed libraries differ (-want +got):\n%s", diff)
			}
			if !strings.Contains(dynamic, "BIND_NOW") {
				t.Error("the library is bound lazily")
			}
			segments := output(t, "readelf", "-lW", library)
			if !strings.Contains(segments, "GNU_RELRO") || strings.Contains(segments, " TLS ") {
				t.Errorf("segments lack RELRO or have TLS:\n%s", segments)
			}
		})
	}
}

func TestABI(t *testing.T) {
	got := output(t, compile(t, "print_abi"))
	checkGolden(t, "testdata/abi.golden", got)
	values := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
		name, value, _ := strings.Cut(line, " ")
		values[name] = value
	}
	// What the tests of this package write and read by hand.
	for name, constant := range map[string]int{
		"AQ_USAGE_MAGIC": usageMagic, "AQ_AGENT_MAGIC": agentMagic, "AQ_AGENT_SIZE": agentSize, "AQ_ABI": abiVersion, "AQ_HEADER_SIZE": headerSize,
		"AQ_SLOT_SIZE": slotSize, "AQ_SLOT_COUNT": slotCount, "AQ_USAGE_SIZE": usageSize,
		"AQ_LOCK_BASE": lockBase, "AQ_UNIT_SHIFT": unitShift, "AQ_FIELD_BITS": fieldBits,
		"AQ_PENDING_SHIFT": fieldBits, "aq_usage_header.denied_allocs": deniedOffset,
		"aq_usage_header.magic": 0, "aq_usage_header.abi": 4, "aq_usage_header.hdr_size": 8,
		"aq_usage_header.slot_size": 12, "aq_usage_header.nslots": 16, "aq_usage_header.hi": 20,
		"AQ_GENERATION_SHIFT": generationShift, "aq_usage_slot.ctx": contextOffset, "aq_agent.seq": agentSeqOffset,
		"aq_agent.context_mib": contextMiBOffset, "aq_agent.slot_overhead_mib": slotOverheadOffset,
		"aq_agent.slot_generation":   slotGenerationOffset,
		"aq_usage_header.gate_until": 40, "aq_usage_slot.charge": 0,
	} {
		if values[name] != strconv.Itoa(constant) {
			t.Errorf("%s is %s in C and %d in Go", name, values[name], constant)
		}
	}
}

func TestLibraryBindsEverythingAtOnce(t *testing.T) {
	cmd := exec.Command("true")
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1", "LD_PRELOAD="+built.library)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("true with the library: %v %s", err, out)
	}
}

// The run-time library of a sanitizer calls dlsym before anything else works, as
// some allocators do.
func TestAProgramThatLooksUpBeforeItIsReadyStarts(t *testing.T) {
	m := newMachine(t, 1)
	cmd := m.command(t, compile(t, "plain", "-fsanitize=thread"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("a program built with a sanitizer: %v\n%s", err, out)
	}
}
