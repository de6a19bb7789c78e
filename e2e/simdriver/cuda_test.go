package simdriver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// The cases are in C, since what is checked is a C library.
func TestCUDA(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	for _, name := range []string{
		"errors", "small", "random", "threads", "contexts", "pools", "pool pressure",
		"vmm", "other memory", "versions", "fork",
		"limits", "green", "arrays", "sparse", "shared memory",
	} {
		t.Run(name, func(t *testing.T) {
			check(t, root, name)
			if used := ledger(t, root).GPUs[0].Used; used != 0 {
				t.Errorf("%d bytes outlive the process", used)
			}
		})
	}
}

func TestContextCost(t *testing.T) {
	hw := load(t, "odd-memory")
	hw.GPUs[0].ContextMiB = 100
	check(t, newRoot(t, hw), "context cost")
}

func TestOnlyCardsWithADeviceNodeAreVisible(t *testing.T) {
	hw := load(t, "t4x4")
	root := newRoot(t, hw)
	node := func(name string) string { return filepath.Join(root.Path, "dev", name) }
	visible := func() []string { return strings.Fields(check(t, root, "devices")) }

	want := []string{hw.GPUs[0].UUID, hw.GPUs[1].UUID, hw.GPUs[2].UUID, hw.GPUs[3].UUID}
	if diff := cmp.Diff(want, visible()); diff != "" {
		t.Errorf("all nodes (-want +got):\n%s", diff)
	}
	// One is gone, one is a plain file, one is another card's.
	for _, name := range []string{"nvidia0", "nvidia1", "nvidia3"} {
		if err := os.Remove(node(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(node("nvidia1"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(node("nvidia3"), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 2))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{hw.GPUs[2].UUID}, visible()); diff != "" {
		t.Errorf("one good node (-want +got):\n%s", diff)
	}
	if err := os.Remove(node("nvidia2")); err != nil {
		t.Fatal(err)
	}
	check(t, root, "no device")
}

func TestCallFaults(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	if err := root.Fault(simdriver.FailNthCall("cuMemAlloc_v2", 2, 719), simdriver.FailCall("cuMemCreate", 700)); err != nil {
		t.Fatal(err)
	}
	check(t, root, "call faults")
	if err := root.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	check(t, root, "vmm")
	if err := root.Fault(simdriver.OwnPointers); err != nil {
		t.Fatal(err)
	}
	check(t, root, "own pointers")
	if err := root.Fault(simdriver.Fault(strings.Repeat("x", 5000))); err == nil {
		t.Error("more faults than there is room for were taken")
	}
}
