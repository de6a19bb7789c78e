package nvml

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/internal/gpu"
)

// bench is a simulated machine of which the tests divide the first GPU.
type bench struct {
	*simdriver.Root
	t    *testing.T
	node *Node
	gpu  string
}

// divisible makes a machine whose first GPU begins as start says; nil is without MIG.
func divisible(t *testing.T, description string, start *simdriver.MIGStart) bench {
	t.Helper()
	hw := hardware(t, description)
	hw.GPUs[0].MIG = start
	r := rootOf(t, hw)
	return bench{Root: r, t: t, node: open(r), gpu: hw.GPUs[0].UUID}
}

// card is how the first GPU is divided, which the simulator tells and not NVML.
func (b bench) card() simdriver.MIGCard {
	b.t.Helper()
	cards, err := b.MIG()
	if err != nil {
		b.t.Fatal(err)
	}
	return cards[0]
}

// unchanged fails the test if what is called changes anything, or if its error does not say want.
func (b bench) unchanged(want string, call func() error) {
	b.t.Helper()
	before := b.card()
	if err := call(); want == "" && err != nil || want != "" && !matches(err, want) {
		b.t.Errorf("got error %v, want %q", err, want)
	}
	if diff := cmp.Diff(before, b.card()); diff != "" {
		b.t.Errorf("the GPU was changed (-before +after):\n%s", diff)
	}
}

func (b bench) create(profile string, place gpu.Placement) gpu.Partition {
	b.t.Helper()
	partition, err := b.node.CreatePartition(b.gpu, profile, place)
	if err != nil {
		b.t.Fatal(err)
	}
	return partition
}

// listed are the partitions of the first GPU that Devices tells of.
func (b bench) listed() []gpu.Partition {
	b.t.Helper()
	devices, skipped, err := b.node.Devices()
	if err != nil || len(skipped) > 0 {
		b.t.Fatalf("error %v, skipped %v", err, skipped)
	}
	if devices[0].MIG == nil {
		b.t.Fatal("the GPU cannot be divided")
	}
	return devices[0].MIG.Partitions
}

// whole fails the test unless the GPU has one instance, filled by one compute instance with that UUID.
func (b bench) whole(p gpu.Partition) {
	b.t.Helper()
	card := b.card()
	if !card.Enabled || !card.Pending || len(card.Instances) != 1 || len(card.Instances[0].Computes) != 1 {
		b.t.Fatalf("the GPU is divided so: %+v", card)
	}
	instance := card.Instances[0]
	got := gpu.Partition{
		UUID: instance.Computes[0].UUID, Profile: instance.Computes[0].Profile, Placement: gpu.Placement{Start: instance.Start, Size: instance.Size},
	}
	if diff := cmp.Diff(p, got); diff != "" {
		b.t.Errorf("the hardware has another partition (-want +got):\n%s", diff)
	}
}

var inMIGMode = &simdriver.MIGStart{Enabled: true}

func TestPartitionsComeAndGo(t *testing.T) {
	for _, tc := range []struct {
		description string
		start       *simdriver.MIGStart
		profile     string
		place       gpu.Placement
	}{
		{"h100x8", nil, "3g.40gb", gpu.Placement{Start: 4, Size: 4}},
		{"h100x8", nil, "1g.20gb", gpu.Placement{Start: 2, Size: 2}},
		{"h100x8", inMIGMode, "7g.80gb", gpu.Placement{Start: 0, Size: 8}},
		{"a100x8", inMIGMode, "2g.10gb", gpu.Placement{Start: 2, Size: 2}},
		{"a100x8", inMIGMode, "1g.5gb+me", gpu.Placement{Start: 6, Size: 1}},
		{"rtxpro6000x2", nil, "2g.48gb", gpu.Placement{Start: 6, Size: 6}},
	} {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%s %s", tc.description, tc.profile), " ", "_"), func(t *testing.T) {
			if !ownProcess(t) {
				return
			}
			b := divisible(t, tc.description, tc.start)
			comeAndGo(b, tc.profile, tc.place)
		})
	}
}

func comeAndGo(b bench, profile string, place gpu.Placement) {
	find := func() (gpu.Partition, bool) {
		b.t.Helper()
		partition, ok, err := b.node.FindPartition(b.gpu, profile, place)
		if err != nil {
			b.t.Error(err)
		}
		return partition, ok
	}
	b.unchanged("", func() error { return b.node.DestroyPartition(b.gpu, profile, place) })
	if partition, ok := find(); ok {
		b.t.Errorf("found %+v before it was made", partition)
	}
	made := b.create(profile, place)
	if !strings.HasPrefix(made.UUID, "MIG-") || !made.At(profile, place) {
		b.t.Errorf("made %+v", made)
	}
	b.whole(made)
	if found, ok := find(); !ok || found != made {
		b.t.Errorf("found %+v, %t; made %+v", found, ok, made)
	}
	if diff := cmp.Diff([]gpu.Partition{made}, b.listed()); diff != "" {
		b.t.Errorf("listed (-want +got):\n%s", diff)
	}
	b.unchanged("", func() error {
		if again := b.create(profile, place); again != made {
			b.t.Errorf("made again it is %+v, was %+v", again, made)
		}
		return nil
	})
	for range 2 {
		if err := b.node.DestroyPartition(b.gpu, profile, place); err != nil {
			b.t.Error(err)
		}
		if card := b.card(); !card.Enabled || len(card.Instances) > 0 {
			b.t.Errorf("destroyed, the GPU is divided so: %+v", card)
		}
	}
	if _, ok := find(); ok || len(b.listed()) > 0 {
		b.t.Error("it is found after it was destroyed")
	}
}

func TestHalfMadePartitions(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	b := divisible(t, "h100x8", inMIGMode)
	place := gpu.Placement{Start: 0, Size: 4}
	half := func() {
		t.Helper()
		if _, err := b.CreateGPUInstance(0, "3g.40gb", place.Start); err != nil {
			t.Fatal(err)
		}
	}
	half()
	want := gpu.Partition{Profile: "3g.40gb", Placement: place}
	if found, ok, err := b.node.FindPartition(b.gpu, "3g.40gb", place); err != nil || !ok || found != want {
		t.Errorf("half made it is found as %+v, %t, %v", found, ok, err)
	}
	if diff := cmp.Diff([]gpu.Partition{want}, b.listed()); diff != "" {
		t.Errorf("half made it is listed as (-want +got):\n%s", diff)
	}
	b.whole(b.create("3g.40gb", place))
	if err := b.node.DestroyPartition(b.gpu, "3g.40gb", place); err != nil {
		t.Error(err)
	}
	half()
	if err := b.node.DestroyPartition(b.gpu, "3g.40gb", place); err != nil || len(b.card().Instances) > 0 {
		t.Errorf("destroyed half made: %v, %+v", err, b.card())
	}
}

func TestMIGModeChangesWhereItCan(t *testing.T) {
	for _, tc := range []struct {
		name, description string
		start             *simdriver.MIGStart
		enable            bool
		wantErr           string
	}{
		{name: "on", description: "h100x8", enable: true},
		{name: "off", description: "h100x8", start: inMIGMode},
		{name: "stays-on", description: "a100x8", start: inMIGMode, enable: true},
		{name: "Ampere-on", description: "a100x8", enable: true, wantErr: "needs a reset"},
		{name: "Ampere-off", description: "a100x8", start: inMIGMode, wantErr: "needs a reset"},
		{name: "none", description: "t4x4", enable: true, wantErr: "read MIG mode: Not Supported"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !ownProcess(t) {
				return
			}
			b := divisible(t, tc.description, tc.start)
			set := func() error { return b.node.SetMIGMode(b.gpu, tc.enable) }
			if tc.wantErr != "" {
				b.unchanged(tc.wantErr, set)
				return
			}
			if err := set(); err != nil || b.card().Enabled != tc.enable || b.card().Pending != tc.enable {
				t.Errorf("got error %v, %+v", err, b.card())
			}
			b.unchanged("", set)
		})
	}
}

func TestWhatCannotBeDoneChangesNothing(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	b := divisible(t, "h100x8", nil)
	create := func(profile string, start, size int) func() error {
		return func() error {
			_, err := b.node.CreatePartition(b.gpu, profile, gpu.Placement{Start: start, Size: size})
			return err
		}
	}
	off := func() error { return b.node.SetMIGMode(b.gpu, false) }
	impossible := func() {
		t.Helper()
		b.unchanged(`make partition 5g.50gb at 0 of GPU `+b.gpu+`: the GPU has no MIG profile "5g.50gb"`, create("5g.50gb", 0, 4))
		b.unchanged("the profile has no placement of 4 slices at 2", create("3g.40gb", 2, 4))
		b.unchanged("the profile has no placement of 2 slices at 0", create("3g.40gb", 0, 2))
		b.unchanged("the profile has no placement of 1 slices at -1", create("1g.10gb", -1, 1))
	}
	impossible()
	three := b.create("3g.40gb", gpu.Placement{Start: 4, Size: 4})
	impossible()
	b.unchanged("create GPU instance: Insufficient Resources", create("1g.10gb", 5, 1))
	b.unchanged("create GPU instance: Insufficient Resources", create("1g.10gb+me", 6, 1))
	b.unchanged("the GPU has partitions", off)
	b.whole(three)
	if err := b.node.DestroyPartition(b.gpu, "3g.40gb", three.Placement); err != nil {
		t.Error(err)
	}
	if err := off(); err != nil || b.card().Enabled {
		t.Errorf("MIG mode off: %v, %+v", err, b.card())
	}
	b.unchanged("open GPU GPU-nobody", func() error {
		_, err := b.node.CreatePartition("GPU-nobody", "1g.10gb", gpu.Placement{Size: 1})
		return err
	})
}

func TestPartitionThatIsUsedStays(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	b := divisible(t, "h100x8", nil)
	place := gpu.Placement{Start: 4, Size: 4}
	made := b.create("3g.40gb", place)
	t.Setenv("CUDA_VISIBLE_DEVICES", made.UUID)
	pid := allocate(t, b.Root, 64<<20)
	if got := b.card().Instances[0].Computes[0].Processes; !slices.Equal(got, []int{pid}) {
		t.Fatalf("processes %v are in the partition, want %d", got, pid)
	}
	b.unchanged("destroy compute instance: In use by another client", func() error { return b.node.DestroyPartition(b.gpu, "3g.40gb", place) })
	b.whole(made)
	stop(t, pid)
	if err := b.node.DestroyPartition(b.gpu, "3g.40gb", place); err != nil || len(b.card().Instances) > 0 {
		t.Errorf("once it was idle: %v, %+v", err, b.card())
	}
}

// A GPU that is used keeps its mode, also the one that is pending.
func TestGPUThatIsUsedKeepsItsMode(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	b := divisible(t, "h100x8", nil)
	pid := allocate(t, b.Root, 64<<20)
	b.unchanged("set MIG mode to 1: In use by another client", func() error { return b.node.SetMIGMode(b.gpu, true) })
	b.unchanged("set MIG mode to 1: In use by another client", func() error {
		_, err := b.node.CreatePartition(b.gpu, "1g.10gb", gpu.Placement{Size: 1})
		return err
	})
	stop(t, pid)
	b.create("1g.10gb", gpu.Placement{Size: 1})
}

// stop ends a process of allocate and waits until it is gone.
func stop(t *testing.T, pid int) {
	t.Helper()
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = process.Kill()
	if _, err := process.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestDividedPartitionHasNoUUID(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	b := divisible(t, "h100x8", inMIGMode)
	id, err := b.CreateGPUInstance(0, "3g.40gb", 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, slices := range []int{1, 2} {
		if _, err := b.CreateComputeInstance(0, id, slices); err != nil {
			t.Fatal(err)
		}
	}
	place := gpu.Placement{Start: 4, Size: 4}
	want := gpu.Partition{Profile: "3g.40gb", Placement: place}
	if found, ok, err := b.node.FindPartition(b.gpu, "3g.40gb", place); err != nil || !ok || found != want {
		t.Errorf("it is found as %+v, %t, %v", found, ok, err)
	}
	if diff := cmp.Diff([]gpu.Partition{want}, b.listed()); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	b.unchanged("has no MIG device that is all of it", func() error {
		_, err := b.node.CreatePartition(b.gpu, "3g.40gb", place)
		return err
	})
}
