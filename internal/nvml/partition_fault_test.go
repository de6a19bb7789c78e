package nvml

import (
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	gocmp "github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/internal/gpu"
)

const faultedProfile = "3g.71gb"

var faultedPlace = gpu.Placement{Start: 4, Size: 4}

// operation is something that may fail at each of its steps.
type operation struct {
	start   *simdriver.MIGStart
	prepare func(bench) error // after start
	run     func(bench) error
	calls   []string // of NVML, that make it fail when they do
}

func create(b bench) error {
	p, err := b.node.CreatePartition(b.gpu, faultedProfile, faultedPlace)
	if err == nil && p.UUID == "" {
		return errors.New("made without a UUID")
	}
	return err
}

func destroyIt(b bench) error { return b.node.DestroyPartition(b.gpu, faultedProfile, faultedPlace) }

func find(b bench) error {
	_, ok, err := b.node.FindPartition(b.gpu, faultedProfile, faultedPlace)
	if err == nil && !ok {
		return errors.New("it is not found")
	}
	return err
}

func setMode(enable bool) func(bench) error {
	return func(b bench) error { return b.node.SetMIGMode(b.gpu, enable) }
}

// halfMade makes a GPU instance with compute instances of so many slices.
func halfMade(slices ...int) func(bench) error {
	return func(b bench) error {
		id, err := b.CreateGPUInstance(0, faultedProfile, faultedPlace.Start)
		for _, n := range slices {
			if err == nil {
				_, err = b.CreateComputeInstance(0, id, n)
			}
		}
		return err
	}
}

// says is what an error says of a call of NVML that failed.
var says = map[string]string{
	"nvmlInit_v2":                                       "initialise NVML: ",
	"nvmlDeviceGetHandleByUUID":                         "open GPU ",
	"nvmlDeviceGetMemoryInfo":                           "read memory of GPU ",
	"nvmlDeviceGetMigMode":                              "read MIG mode",
	"nvmlDeviceGetArchitecture":                         "read architecture: ",
	"nvmlDeviceSetMigMode":                              "set MIG mode to ",
	"nvmlDeviceGetGpuInstanceProfileInfo":               "read MIG profile ",
	"nvmlDeviceGetGpuInstancePossiblePlacements_v2":     "read the placements of the profile: ",
	"nvmlDeviceGetGpuInstances":                         "list GPU instances: ",
	"nvmlGpuInstanceGetInfo":                            "read GPU instance: ",
	"nvmlDeviceCreateGpuInstanceWithPlacement":          "create GPU instance: ",
	"nvmlGpuInstanceGetComputeInstanceProfileInfo":      "compute instance profile ",
	"nvmlGpuInstanceGetComputeInstances":                "list compute instances: ",
	"nvmlGpuInstanceCreateComputeInstance":              "create compute instance: ",
	"nvmlGpuInstanceCreateComputeInstanceWithPlacement": "take back: create compute instance: ",
	"nvmlComputeInstanceGetInfo_v2":                     "read compute instance: ",
	"nvmlComputeInstanceDestroy":                        "destroy compute instance: ",
	"nvmlGpuInstanceDestroy":                            "destroy GPU instance: ",
	"nvmlDeviceGetMaxMigDeviceCount":                    "count MIG devices: ",
	"nvmlDeviceGetMigDeviceHandleByIndex":               "open MIG device ",
	"nvmlDeviceGetGpuInstanceId":                        "read MIG device ",
	"nvmlDeviceGetAttributes_v2":                        "read MIG device ",
	"nvmlDeviceGetUUID":                                 "read MIG device ",
}

func callsOf(groups ...[]string) []string {
	return slices.Sorted(slices.Values(slices.Concat(groups...)))
}

var (
	opening  = []string{"nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode"}
	changing = []string{"nvmlDeviceGetArchitecture", "nvmlDeviceSetMigMode"}
	listing  = []string{"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstances"}
	naming   = []string{
		"nvmlGpuInstanceGetInfo", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
		"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetUUID",
	}
	making = []string{
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstances",
		"nvmlGpuInstanceCreateComputeInstance",
	}
	placing  = []string{"nvmlDeviceCreateGpuInstanceWithPlacement"}
	removing = []string{
		"nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstances", "nvmlGpuInstanceDestroy",
	}
	emptying = []string{"nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceDestroy"}

	// beside is another partition, which is not to be taken for the one that is meant.
	beside = &simdriver.MIGStart{Enabled: true, Instances: []simdriver.MIGPlace{{Profile: faultedProfile, Start: 0}}}
	whole  = &simdriver.MIGStart{Enabled: true, Instances: []simdriver.MIGPlace{{Profile: faultedProfile, Start: 0}, {Profile: faultedProfile, Start: 4}}}

	operations = map[string]operation{
		"create-in-a-whole-GPU":  {run: create, calls: callsOf(opening, changing, listing[:1], placing, naming, making)},
		"create-beside-another":  {start: beside, run: create, calls: callsOf(opening, listing, placing, naming, making)},
		"create-what-is-half":    {start: beside, prepare: halfMade(), run: create, calls: callsOf(opening, listing, naming, making)},
		"destroy":                {start: whole, run: destroyIt, calls: callsOf(opening, listing, removing, emptying)},
		"destroy-what-is-half":   {start: beside, prepare: halfMade(), run: destroyIt, calls: callsOf(opening, listing, removing)},
		"destroy-what-is-shared": {start: beside, prepare: halfMade(2, 1), run: destroyIt, calls: callsOf(opening, listing, removing, emptying)},
		"find":                   {start: whole, run: find, calls: callsOf(opening, listing, naming)},
		"mode-on":                {run: setMode(true), calls: callsOf(opening, changing)},
		"mode-off":               {start: inMIGMode, run: setMode(false), calls: callsOf(opening, changing, listing)},
	}
)

// Whatever fails, the GPU is as it was if that is an error and as it should be if not, and the next try succeeds.
func TestEveryFailureAtEveryStep(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		t.Run(name, func(t *testing.T) {
			if !ownProcess(t) {
				return
			}
			failAtEveryStep(newFaulted(t, operations[name]))
		})
	}
}

// faulted is a machine on which one operation is tried again and again, each time from the same state.
type faulted struct {
	bench
	operation
	division      []byte // the state in the simulator's own words
	before, after simdriver.MIGCard
	seen          map[[sha256.Size]byte]simdriver.MIGCard // by the simulator's own words, since to ask it takes a process
}

func newFaulted(t *testing.T, o operation) *faulted {
	t.Helper()
	f := &faulted{bench: divisible(t, "h200x2", o.start), operation: o, seen: map[[sha256.Size]byte]simdriver.MIGCard{}}
	if o.prepare != nil {
		if err := o.prepare(f.bench); err != nil {
			t.Fatal(err)
		}
	}
	f.before = f.shape()
	f.division = f.words()
	if err := o.run(f.bench); err != nil {
		t.Fatal(err)
	}
	f.after = f.shape()
	return f
}

// shape is how the GPU is divided, without what is given anew to a compute instance that is put back.
func (f *faulted) shape() simdriver.MIGCard {
	f.t.Helper()
	words := sha256.Sum256(f.words())
	if card, ok := f.seen[words]; ok {
		return card
	}
	card := f.card()
	for _, instance := range card.Instances {
		for i := range instance.Computes {
			instance.Computes[i].UUID, instance.Computes[i].ID = "", 0
		}
		slices.SortFunc(instance.Computes, func(a, b simdriver.MIGCompute) int { return cmp.Compare(a.Start, b.Start) })
	}
	f.seen[words] = card
	return card
}

func (f *faulted) words() []byte {
	f.t.Helper()
	words, err := os.ReadFile(f.State("mig"))
	if err != nil {
		f.t.Fatal(err)
	}
	return words
}

// begin puts the state before the operation back, in place: processes have the file mapped.
func (f *faulted) begin(faults ...simdriver.Fault) {
	f.t.Helper()
	file, err := os.OpenFile(f.State("mig"), os.O_WRONLY, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = file.WriteAt(f.division, 0)
	if err := errors.Join(err, file.Close(), f.Fault(faults...)); err != nil {
		f.t.Fatal(err)
	}
}

// try runs the operation with faults, and says whether it failed.
func (f *faulted) try(faults ...simdriver.Fault) error {
	f.t.Helper()
	f.begin(faults...)
	err := f.run(f.bench)
	if clearErr := f.ClearFaults(); clearErr != nil {
		f.t.Fatal(clearErr)
	}
	got := f.shape()
	want := f.before
	if err == nil {
		want = f.after
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		f.t.Errorf("%v: error %v; the GPU is not as it should be then (-want +got):\n%s", faults, err, diff)
	}
	if err == nil {
		return nil
	}
	if err := f.run(f.bench); err != nil {
		f.t.Errorf("%v: tried again without: %v", faults, err)
	}
	if diff := gocmp.Diff(f.after, f.shape()); diff != "" {
		f.t.Errorf("%v: tried again without (-want +got):\n%s", faults, diff)
	}
	return err
}

// lies are results that mean to the caller that there is nothing, where there is something; and who would believe them.
var (
	lies      = []nvmllib.Return{nvmllib.ERROR_NOT_SUPPORTED, nvmllib.ERROR_NOT_FOUND, nvmllib.ERROR_INVALID_ARGUMENT}
	believers = []string{"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlDeviceGetMigDeviceHandleByIndex"}
)

func failAtEveryStep(f *faulted) {
	var others []simdriver.Fault
	for _, function := range exported(f.t, f.NVML()) {
		if !slices.Contains(f.calls, function) {
			others = append(others, simdriver.FailCall(function, int(nvmllib.ERROR_UNKNOWN)))
		}
	}
	for faults := range slices.Chunk(others, 50) { // as many as the simulator takes
		if err := f.try(faults...); err != nil {
			f.t.Errorf("something else than %v fails it: %v", f.calls, err)
		}
	}
	for _, function := range f.calls {
		f.fails(function, simdriver.FailCall(function, int(nvmllib.ERROR_UNKNOWN)))
		for _, lie := range lies {
			_ = f.try(simdriver.FailCall(function, int(lie)))
		}
		f.failAtEveryCall(function)
	}
}

func (f *faulted) failAtEveryCall(function string) {
	f.fails(function, simdriver.FailNthCall(function, 1, int(nvmllib.ERROR_UNKNOWN)))
	for n := 2; ; n++ {
		err := f.try(simdriver.FailNthCall(function, n, int(nvmllib.ERROR_UNKNOWN)))
		if err == nil {
			return // there are fewer calls
		}
		f.says(function, err)
		if slices.Contains(believers, function) {
			for _, lie := range lies {
				_ = f.try(simdriver.FailNthCall(function, n, int(lie)))
			}
		}
	}
}

func (f *faulted) fails(function string, fault simdriver.Fault) {
	f.t.Helper()
	if err := f.try(fault); err == nil {
		f.t.Errorf("%s: no error", fault)
	} else {
		f.says(function, err)
	}
}

// says checks that an error names what failed.
func (f *faulted) says(function string, err error) {
	f.t.Helper()
	for _, want := range []string{f.gpu, says[function], "Unknown Error"} {
		if !strings.Contains(err.Error(), want) {
			f.t.Errorf("%s failed: %v, which does not say %q", function, err, want)
		}
	}
}

// exported lists the functions of an NVML library.
func exported(t *testing.T, library string) (names []string) {
	t.Helper()
	file, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range symbols {
		if symbol.Section != elf.SHN_UNDEF && strings.HasPrefix(symbol.Name, "nvml") {
			names = append(names, symbol.Name)
		}
	}
	if len(names) < len(says) {
		t.Fatalf("%s exports %v alone", library, names)
	}
	return names
}

// What is taken back by a call that fails as well cannot be, so these are the only failures after which the GPU is between:
// two at a time. It is then known to be there, and another create completes it and another destroy removes it.
func TestWhatCannotBeTakenBackIsCompletedOrUndone(t *testing.T) {
	unknown := int(nvmllib.ERROR_UNKNOWN)
	for name, tc := range map[string]struct {
		operation         string
		fails             string
		call              int // of fails
		takesBack         string
		from              int // the call of takesBack from which it fails
		there, unfinished bool
	}{
		"compute-instance": {"create-beside-another", "nvmlDeviceGetMaxMigDeviceCount", 1, "nvmlComputeInstanceDestroy", 1, true, false},
		"GPU-instance":     {"create-beside-another", "nvmlGpuInstanceCreateComputeInstance", 1, "nvmlGpuInstanceDestroy", 1, true, true},
		"mode":             {"create-in-a-whole-GPU", "nvmlDeviceCreateGpuInstanceWithPlacement", 1, "nvmlDeviceSetMigMode", 2, false, false},
		"mode-in-doubt":    {"mode-on", "nvmlDeviceGetMigMode", 2, "nvmlDeviceSetMigMode", 2, false, false},
		"what-was-in-it":   {"destroy", "nvmlGpuInstanceDestroy", 1, "nvmlGpuInstanceCreateComputeInstanceWithPlacement", 1, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			if !ownProcess(t) {
				return
			}
			f := newFaulted(t, operations[tc.operation])
			both := []simdriver.Fault{
				simdriver.FailNthCall(tc.fails, tc.call, unknown), simdriver.FailNthCall(tc.takesBack, tc.from, unknown),
			}
			fail := func() {
				t.Helper()
				f.begin(both...)
				err := f.run(f.bench)
				if err := f.ClearFaults(); err != nil {
					t.Fatal(err)
				}
				if !matches(err, says[tc.fails]) || !matches(err, "take back: "+strings.TrimPrefix(says[tc.takesBack], "take back: ")) {
					t.Errorf("got error %v, which does not name %s and %s", err, tc.fails, tc.takesBack)
				}
			}
			fail()
			found, ok, err := f.node.FindPartition(f.gpu, faultedProfile, faultedPlace)
			if err != nil || ok != tc.there || ok && (found.UUID == "") != tc.unfinished {
				t.Errorf("found %+v, %t, %v", found, ok, err)
			}
			if err := create(f.bench); err != nil {
				t.Errorf("completed: %v", err)
			}
			fail()
			if err := destroyIt(f.bench); err != nil {
				t.Errorf("undone: %v", err)
			}
			for _, instance := range f.card().Instances {
				if instance.Start == faultedPlace.Start {
					t.Errorf("undone there is still %+v", instance)
				}
			}
		})
	}
}
