package preload_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listed is what testdata/processes.c prints when that many processes are
// listed, as "pid:MiB".
func listed(processes ...string) string {
	few, tooFew := 0, ""
	if len(processes) > 0 {
		few, tooFew = 7, " 7" // NVML_ERROR_INSUFFICIENT_SIZE
	} else {
		tooFew = " 0"
	}
	return fmt.Sprintf("%d %d, 0%s,%s %d", few, len(processes), strings.Join(append([]string{""}, processes...), " "), tooFew, len(processes))
}

// checkProcesses compares every way to ask NVML for the processes of a card.
func (m *machine) checkProcesses(t testing.TB, card int, processes ...string) {
	t.Helper()
	out, err := m.command(t, compile(t, "processes"), fmt.Sprint(card)).Output()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for mode, kind := range []string{"Compute", "Graphics", "MPSCompute"} {
		lists := listed()
		if mode == 0 {
			lists = listed(processes...)
		}
		for _, version := range []string{"", "_v2", "_v3"} {
			fmt.Fprintf(&want, "nvmlDeviceGet%sRunningProcesses%s: %s\n", kind, version, lists)
		}
		fmt.Fprintf(&want, "details %d: %s\n", mode, lists)
	}
	want.WriteString("wrong: 2 2 2 25\n") // the driver's answers
	if diff := cmp.Diff(want.String(), string(out)); diff != "" {
		t.Errorf("NVML lists other processes (-want +got):\n%s", diff)
	}
}

func TestNVMLShowsTheProcessesOfTheShares(t *testing.T) {
	m := newMachine(t, 2)
	m.newShare(t, 0, "one", 64*mib)
	m.newShare(t, 0, "two", 8*mib)
	m.checkProcesses(t, 0)
	a, b := m.client(t, 0), m.client(t, 0)
	a.want(t, success, "alloc 0 %d", 66*mib) // of both shares
	b.want(t, success, "alloc 0 512")
	outsider := &client{cmd: m.command(t, compile(t, "client"))}
	outsider.cmd.Env = m.environ(false)
	outsider.start(t)
	outsider.want(t, success, "init")
	outsider.want(t, success, "device 0")
	outsider.want(t, success, "alloc 0 %d", 16*mib)
	first, second := fmt.Sprintf("%d:66", a.cmd.Process.Pid), fmt.Sprintf("%d:2", b.cmd.Process.Pid)
	m.checkProcesses(t, 0, first, second)
	a.cmd.Process.Kill() // leaves its slot
	a.cmd.Wait()
	m.checkProcesses(t, 0, second)
	b.exit(t)
	m.checkProcesses(t, 0)
}

func TestNVMLShowsNoProcessesOfOtherPIDNamespaces(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 64*mib)
	c := &client{cmd: m.command(t, compile(t, "client"))}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c.start(t)
	c.want(t, success, "init")
	c.want(t, success, "device 0")
	c.want(t, success, "alloc 0 %d", 6*mib)
	m.checkProcesses(t, 0)
}

func TestNVMLShowsAllProcessesOfAGPUWithoutAShare(t *testing.T) {
	m := newMachine(t, 2)
	m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 1)
	c.want(t, success, "alloc 0 %d", 6*mib)
	m.checkProcesses(t, 1, fmt.Sprintf("%d:6", c.cmd.Process.Pid))
}

func TestNVMLTellsHowBusyTheProcessesOfTheSharesAre(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 64*mib)
	a, b := m.client(t, 0), m.client(t, 0)
	dir := t.TempDir()
	if err := run("gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,-Bsymbolic",
		"-o", filepath.Join(dir, "libnvidia-ml.so.1"), "testdata/idle_nvml.c"); err != nil {
		t.Fatal(err)
	}
	first, second := a.cmd.Process.Pid, b.cmd.Process.Pid
	for _, test := range []struct{ samples, want string }{
		{fmt.Sprintf("1 %d 2 %d 3", first, second), fmt.Sprintf("5 0 %d:11 %d:13", first, second)},
		{fmt.Sprintf("%d", second), fmt.Sprintf("1 0 %d:10", second)},
		{"1 2 3", "3 6"}, // NVML_ERROR_NOT_FOUND
		{"", "0 6"},
	} {
		cmd := m.command(t, compile(t, "utilization"))
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir, "SAMPLES="+test.samples)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fmt.Sprintf("samples %[1]s\ninfos %[1]s\n", test.want), string(out)); diff != "" {
			t.Errorf("of %q NVML shows (-want +got):\n%s", test.samples, diff)
		}
	}
}
