package simdriver_test

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
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
		"utilization",
	} {
		t.Run(name, func(t *testing.T) {
			checkWith(t, root, "compute_check", name)
			if used := ledger(t, root).GPUs[0].Used; used != 0 {
				t.Errorf("%d bytes outlive the process", used)
			}
		})
	}
}

func TestCapture(t *testing.T) {
	root := newRoot(t, load(t, "odd-memory"))
	for _, name := range []string{
		"capture", "fork", "legacy", "modes", "conflicts", "threads", "graphs", "memory",
	} {
		t.Run(name, func(t *testing.T) {
			checkWith(t, root, "capture_check", name)
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

// Two processes that both always have work get half of the card each, by what
// the card itself counts and by NVML, which has the root read-only in a node.
func TestProcessesShareACardEqually(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := newRoot(t, load(t, "odd-memory"))
	uuid := root.Hardware.GPUs[0].UUID
	d := ask[nvml.Device](asker{t}, "handle")(newNVML(t, root).DeviceGetHandleByIndex(0))
	if rates := ask[nvml.Utilization](asker{t}, "rates")(d.GetUtilizationRates()); rates.Gpu != 0 {
		t.Errorf("an idle card is busy: %+v", rates)
	}
	if _, ret := d.GetProcessUtilization(0); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("processes of an idle card: %v", ret)
	}
	pids := map[uint32]bool{}
	for range 2 {
		pids[uint32(start(t, "load", command(t, root, "compute_check", "load")).cmd.Process.Pid)] = true
	}

	before := ledger(t, root)
	for deadline := time.Now().Add(time.Minute); ; {
		samples, ret := d.GetProcessUtilization(0)
		half := 0
		for _, sample := range samples {
			if pids[sample.Pid] && (sample.SmUtil == 50 || sample.SmUtil == 49 || sample.SmUtil == 51) {
				half++
			}
		}
		if half == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a full second of both was never seen: %+v, %v", samples, ret)
		}
		<-time.After(20 * time.Millisecond) // between two looks
	}
	if rates := ask[nvml.Utilization](asker{t}, "rates")(d.GetUtilizationRates()); rates.Gpu < 90 { // they have the processor too seldom on a machine that is busy
		t.Errorf("the card is busy for %d %%", rates.Gpu)
	}
	after := ledger(t, root)
	var had []time.Duration
	for i := range after.Processes {
		had = append(had, after.Processes[i].Busy[uuid]-before.Processes[i].Busy[uuid])
	}
	const slice = 2 * time.Millisecond
	if len(had) != 2 || (had[0]-had[1]).Abs() > slice || had[0]+had[1] != after.GPUs[0].Busy-before.GPUs[0].Busy {
		t.Errorf("the processes had %v of %v", had, after.GPUs[0].Busy-before.GPUs[0].Busy)
	}
}
