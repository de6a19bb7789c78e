//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/workload"
)

// block is the granularity of the simulated hardware, as of the real one: 2 MiB.
const block = 2 << 20

// bytesOf reads a quantity.
func bytesOf(quantity string) uint64 {
	q := resource.MustParse(quantity)
	return uint64(q.Value())
}

// reachable is what can be allocated of a quota in the hardware's blocks.
func reachable(quota string) uint64 {
	return bytesOf(quota) / block * block
}

// held waits until the pod's containers hold what they could get, and checks that it is exactly their quotas, in the
// order of containers: by what they saw, by what they got, and by the hardware's own ledger.
func (s *spec) held(name string, quotas ...string) []scenario.Program {
	s.Helper()
	programs, err := s.Holding(s.Context(), s.namespace, name, 1)
	s.must(err)
	if len(programs) != len(quotas) {
		s.Fatalf("pod %s has %d containers, want %d", name, len(programs), len(quotas))
	}
	var want, peaks []uint64
	for i, p := range programs {
		if p.Shown() != bytesOf(quotas[i]) {
			s.Errorf("container %s of %s is shown %d bytes, its share is %s", p.Container, name, p.Shown(), quotas[i])
		}
		if p.Got() != reachable(quotas[i]) {
			s.Errorf("container %s of %s got %d bytes, its share is %s", p.Container, name, p.Got(), quotas[i])
		}
		want = append(want, reachable(quotas[i]))
	}
	usages, err := s.Hardware(s.node, name)
	s.must(err)
	for _, usage := range usages {
		var peak uint64
		for _, gpu := range usage {
			peak += gpu.Peak
		}
		peaks = append(peaks, peak)
	}
	slices.Sort(want)
	slices.Sort(peaks)
	if !slices.Equal(peaks, want) {
		s.Errorf("the hardware gave the containers of %s %d bytes at most, want %d", name, peaks, want)
	}
	return programs
}

// stillHeld checks a pod that held its share before: its container was not started anew, has what it had, and another
// process in it gets nothing more.
func (s *spec) stillHeld(name, quota string) {
	s.Helper()
	pod, err := s.pod(s.Context(), name)
	s.must(err)
	if pod.Status.Phase != corev1.PodRunning || scenario.Restarts(*pod) > 0 {
		s.Fatalf("pod %s is %s and was restarted %d times", name, pod.Status.Phase, scenario.Restarts(*pod))
	}
	usages, err := s.Hardware(s.node, name)
	s.must(err)
	var used uint64
	for _, usage := range usages {
		for _, gpu := range usage {
			used += gpu.Used
		}
	}
	if used != reachable(quota) {
		s.Errorf("pod %s holds %d bytes, want %d", name, used, reachable(quota))
	}
	if got := s.alloc(name, pod.Spec.Containers[0].Name); got != 0 {
		s.Errorf("pod %s holds its share and got %d bytes more", name, got)
	}
}

// exec runs a program in a container.
func (s *spec) exec(pod, container string, argv ...string) (string, error) {
	args := append([]string{"exec", "--namespace", s.namespace, pod, "--container", container, "--"}, argv...)
	return s.Kubectl(s.Context(), args...)
}

// alloc runs one more process in a container, which takes what it can and ends, and returns the bytes that it got.
func (s *spec) alloc(pod, container string, args ...string) (got uint64) {
	s.Helper()
	output, err := s.exec(pod, container, append([]string{workload.Program}, args...)...)
	if err != nil {
		s.Fatalf("%v\n%s", err, output)
	}
	events, err := workload.Events([]byte(output))
	s.must(err)
	allocated := workload.Select(events, "allocated")
	if len(allocated) == 0 {
		s.Fatalf("%s in container %s of %s said nothing of what it got:\n%s", workload.Program, container, pod, output)
	}
	for _, e := range allocated {
		got += e.Bytes
	}
	return got
}

// background runs a program in a container until it holds what it got, and returns its pid there; wait returns when it
// has ended.
func (s *spec) background(pod, container string, args ...string) (pid int, wait func()) {
	s.Helper()
	command := []string{"exec", "--namespace", s.namespace, pod, "--container", container, "--", workload.Program, "--hold"}
	cmd := s.Command(s.Context(), "kubectl", append(command, args...)...)
	var output lines
	cmd.Stdout, cmd.Stderr = &output, &output
	s.must(cmd.Start())
	s.eventually("a program in pod "+pod+" holds its memory", func(context.Context) (bool, error) {
		events, err := workload.Events(output.text())
		if err != nil {
			return false, err
		}
		holding := workload.Select(events, "holding")
		if len(holding) == 0 {
			return false, fmt.Errorf("it printed %s", output.text())
		}
		pid = holding[0].PID
		return true, nil
	})
	return pid, func() { s.ended(cmd) }
}

func (s *spec) ended(cmd *exec.Cmd) {
	s.Helper()
	if err := cmd.Wait(); err == nil {
		s.Errorf("%s ended well, want it killed", strings.Join(cmd.Args, " "))
	}
}
