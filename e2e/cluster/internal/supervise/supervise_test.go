package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A set reaps every child of its process, so the tests' set lives in a process
// of its own: this program, run anew as a supervisor.
func TestMain(m *testing.M) {
	if os.Getenv("SUPERVISE_SOCKET") != "" {
		if err := supervisor(os.Getenv("SUPERVISE_SOCKET")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func supervisor(socket string) error {
	var processes []Process
	if err := json.Unmarshal([]byte(os.Getenv("SUPERVISE_PROCESSES")), &processes); err != nil {
		return err
	}
	listener, err := Listen(socket)
	if err != nil {
		return err
	}
	set := NewSet()
	for _, p := range processes {
		if err := set.Add(p); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	return set.Serve(listener)
}

func startSupervisor(t *testing.T, processes ...Process) Client {
	t.Helper()
	// Longer than an address of a socket may be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range processes {
		processes[i].Log = filepath.Join(dir, processes[i].Name+".log")
	}
	encoded, err := json.Marshal(processes)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "control.sock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SUPERVISE_SOCKET="+socket, "SUPERVISE_PROCESSES="+string(encoded))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client := Client{Socket: socket}
	t.Cleanup(func() {
		for _, p := range processes {
			_ = client.Kill(context.Background(), p.Name)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("supervisor says %q: %v", line, err)
	}
	return client
}

func shell(name, script string) Process {
	return Process{Name: name, Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}
}

// awaitStatus asks until the process is as wanted; the test's own time limit is
// the only one.
func awaitStatus(t *testing.T, client Client, name string, wanted func(Status) bool) Status {
	t.Helper()
	for {
		statuses, err := client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range statuses {
			if s.Name == name && wanted(s) {
				return s
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func ended(s Status) bool { return s.PID == 0 }

func TestStopEndsAProcessAndStartRunsItAgain(t *testing.T) {
	client := startSupervisor(t, shell("sleeper", "exec sleep 1000"))
	first := awaitStatus(t, client, "sleeper", func(s Status) bool { return s.PID != 0 })
	if err := client.Stop(t.Context(), "sleeper"); err != nil {
		t.Fatal(err)
	}
	if s := awaitStatus(t, client, "sleeper", ended); !s.Stopped || s.Outcome != "killed by killed" {
		t.Errorf("after Stop: %+v", s)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", first.PID)); !os.IsNotExist(err) {
		t.Errorf("process %d is still there after Stop", first.PID)
	}
	if err := client.Start(t.Context(), "sleeper"); err != nil {
		t.Fatal(err)
	}
	if s := awaitStatus(t, client, "sleeper", func(s Status) bool { return s.PID != 0 }); s.PID == first.PID || s.Stopped {
		t.Errorf("after Start: %+v, first %+v", s, first)
	}
}

func TestStopAsksBeforeItKills(t *testing.T) {
	p := shell("polite", "trap 'exit 7' TERM; echo trapped; while :; do sleep 0.01; done")
	p.Grace = time.Minute
	client := startSupervisor(t, p)
	log := filepath.Join(filepath.Dir(client.Socket), "polite.log")
	for content := ""; content != "trapped\n"; {
		read, _ := os.ReadFile(log)
		content = string(read)
	}
	if err := client.Stop(t.Context(), "polite"); err != nil {
		t.Fatal(err)
	}
	if s := awaitStatus(t, client, "polite", ended); s.Outcome != "exit status 7" {
		t.Errorf("outcome %q, want the process's own", s.Outcome)
	}
}

func TestKillDoesNotAsk(t *testing.T) {
	p := shell("deaf", "trap '' TERM; while :; do sleep 0.01; done")
	p.Grace = time.Hour
	client := startSupervisor(t, p)
	if err := client.Kill(t.Context(), "deaf"); err != nil {
		t.Fatal(err)
	}
	if s := awaitStatus(t, client, "deaf", ended); !s.Stopped || s.Outcome != "killed by killed" {
		t.Errorf("after Kill: %+v", s)
	}
}

func TestStatusTellsOfAProcessThatEndedByItself(t *testing.T) {
	client := startSupervisor(t, shell("failing", "exit 3"))
	if s := awaitStatus(t, client, "failing", ended); s.Stopped || s.Outcome != "exit status 3" {
		t.Errorf("status %+v", s)
	}
}

func TestUnknownProcessIsAnError(t *testing.T) {
	client := startSupervisor(t)
	if err := client.Stop(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), "no process nobody") {
		t.Errorf("error %v", err)
	}
}
