//go:build e2e

package cluster_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/cluster"
)

// starterEnv names the directory of the cluster that this program is to start,
// and nothing else: it is the starter that a test kills.
const starterEnv = "ALIQUOT_E2E_STARTER"

func beStarter(dir string) {
	if _, err := cluster.Start(context.Background(), cluster.Config{Dir: dir, Log: os.Stderr}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("started")
	select {}
}

// startAndKill starts a cluster from another process, runs a pod on it, and
// kills that process.
func startAndKill(t *testing.T, dir string, alsoKill ...string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), starterEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "started\n" {
		t.Fatalf("the starter says %q", line)
	}
	c, err := cluster.Attach(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(t.Context(), "run", "lasting", "--image=aliquot.test/base:latest", "--image-pull-policy=Never", "--command", "--", "sleep", "1000"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(t.Context(), "wait", "--for=condition=Ready", "pod/lasting", "--timeout=1m"); err != nil {
		t.Fatal(err)
	}
	// Killed before its starter is, the keeper cannot clean up.
	for _, name := range alsoKill {
		for _, pid := range processes(name + "\x00" + dir) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDeathOfTheStarterLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	startAndKill(t, dir)
	awaitNone(t, func() []string { return leftovers(dir) })
}

func TestCleanSweepsAfterDeathOfTheKeeper(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	startAndKill(t, dir, "aliquot-keeper")
	awaitNone(t, func() []string { return named(processes(dir)) })
	if left := leftovers(dir); len(left) == 0 {
		t.Error("the killed keeper cleaned up: this test shows nothing")
	}
	if err := cluster.Clean(); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(dir); len(left) > 0 {
		t.Errorf("Clean left %v", left)
	}
}

// awaitNone asks until nothing is left; the test's own time limit ends it.
func awaitNone(t *testing.T, ask func() []string) {
	t.Helper()
	for left := ask(); len(left) > 0; left = ask() {
		if t.Context().Err() != nil {
			t.Fatalf("left: %v", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// leftovers tells what remains of the cluster that ran in a directory: the
// directory, processes, and cgroups and registry entries of clusters that do
// not run.
func leftovers(dir string) []string {
	left := named(processes(dir))
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		left = append(left, dir)
	}
	cache, _ := os.UserCacheDir()
	entries, _ := filepath.Glob(filepath.Join(cache, "aliquot/cluster/live/*"))
	live := make(map[string]bool)
	for _, entry := range entries {
		content, _ := os.ReadFile(entry)
		if strings.Contains(string(content), strconv.Quote(dir)) {
			left = append(left, entry)
		}
		live["aliquot-"+filepath.Base(entry)] = true
	}
	for _, pattern := range []string{"/sys/fs/cgroup/aliquot-*", "/sys/fs/cgroup/*/aliquot-*"} {
		groups, _ := filepath.Glob(pattern)
		for _, group := range groups {
			if !live[filepath.Base(group)] {
				left = append(left, group)
			}
		}
	}
	return left
}

// processes finds the processes that have a text in their command line.
func processes(text string) []int {
	var found []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() && strings.Contains(string(line), text) {
			found = append(found, pid)
		}
	}
	return found
}

func named(pids []int) []string {
	var names []string
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		names = append(names, fmt.Sprintf("process %d: %q", pid, line))
	}
	return names
}
