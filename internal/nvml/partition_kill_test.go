package nvml

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
)

const divideVariable = "ALIQUOT_TEST_DIVIDE"

// Whoever comes after a process that was killed completes what it began, or undoes it.
func TestPartitionsSurviveDeathAtAnyMoment(t *testing.T) {
	if dir := os.Getenv(divideVariable); dir != "" {
		t.Fatal(divideForever(dir))
	}
	if !ownProcess(t) {
		return
	}
	b := divisible(t, "h200x2", nil)
	idle := b.card()
	found := map[string]int{}
	for round := range 32 {
		dieDividing(t, b)
		found[stage(b.card())]++
		if round%2 == 0 {
			b.whole(b.create(faultedProfile, faultedPlace))
		}
		if err := destroyIt(b); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := setMode(false)(b); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if diff := cmp.Diff(idle, b.card()); diff != "" {
			t.Fatalf("round %d: the GPU is not as it was (-want +got):\n%s", round, diff)
		}
	}
	if len(found) < 2 {
		t.Errorf("killed always at one stage: %v", found)
	}
	t.Logf("killed at these stages: %v", found)
}

func stage(card simdriver.MIGCard) string {
	switch {
	case !card.Enabled:
		return "not in MIG mode"
	case len(card.Instances) == 0:
		return "no partition"
	case len(card.Instances[0].Computes) == 0:
		return "half a partition"
	}
	return "a partition"
}

// divideForever makes and removes a partition until it is killed.
func divideForever(dir string) error {
	r, err := simdriver.Open(dir)
	if err != nil {
		return err
	}
	b := bench{Root: r, node: open(r), gpu: os.Getenv("ALIQUOT_TEST_GPU")}
	fmt.Println("begun")
	for {
		for _, step := range []func(bench) error{create, find, destroyIt, setMode(false)} {
			if err := step(b); err != nil {
				return err
			}
		}
	}
}

// dieDividing starts divideForever and kills it at some moment.
func dieDividing(t *testing.T, b bench) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), divideVariable+"="+b.Path, "ALIQUOT_TEST_GPU="+b.gpu)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	<-time.After(rand.N(20 * time.Millisecond)) // any moment will do: there is no condition to wait for
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if status := cmd.ProcessState.String(); err != nil || status != "signal: killed" {
		t.Fatalf("it said %q and ended with %s", line, status)
	}
}
