package simdriver_test

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// The model of the cards is compiled into a program that turns the clock.
func TestComputeModel(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), "compute_model")
	output, err := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I", "native",
		"-o", program, "testdata/compute_model.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, name := range []string{
		"order", "looking", "slices", "turns", "cards", "meetings", "death", "forecast", "use", "kill",
	} {
		t.Run(name, func(t *testing.T) {
			if output, err := exec.CommandContext(t.Context(), program, name).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}

func TestCompute(t *testing.T) {
	root := newRoot(t, load(t, "t4x4"))
	for _, name := range []string{
		"launches", "names", "room", "events", "streams", "modules", "two processes", "death", "meetings", "devices",
	} {
		t.Run(name, func(t *testing.T) {
			checkWith(t, root, "compute_check", name)
			if used := ledger(t, root).GPUs[0].Used; used != 0 {
				t.Errorf("%d bytes outlive the process", used)
			}
		})
	}
}

// Whenever a process is killed, the others go on, and the card is free when all
// are dead.
func TestComputeSurvivesSIGKILLAtAnyInstruction(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	var running []*actor
	storm := func() *actor { return start(t, "storm", command(t, root, "compute_check", "storm")) }
	for range 3 {
		running = append(running, storm())
	}
	for i := range 30 {
		at := i % len(running)
		running[at].kill()
		running[at] = storm()
	}
	for _, a := range running {
		a.kill()
	}
	checkWith(t, root, "compute_check", "launches")
}
