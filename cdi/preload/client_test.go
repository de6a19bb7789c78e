package preload_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// CUresult values.
const (
	success      = "0"
	invalidValue = "1"
	outOfMemory  = "2"
)

// client is a running CUDA program that does what the test says.
type client struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

// client starts a program and has it use a card.
func (m *machine) client(t testing.TB, card int) *client {
	t.Helper()
	c := m.idleClient(t)
	c.want(t, success, "device %d", card)
	return c
}

// idleClient starts a program that has no context yet.
func (m *machine) idleClient(t testing.TB) *client {
	t.Helper()
	c := m.startClient(t, compile(t, "client"), "dlsym")
	c.want(t, success, "init")
	return c
}

func (m *machine) startClient(t testing.TB, path string, args ...string) *client {
	t.Helper()
	c := &client{cmd: m.command(t, path, args...)}
	return c.start(t)
}

func (c *client) start(t testing.TB) *client {
	t.Helper()
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	c.cmd.Stderr = &c.stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return c
}

// stop ends the program, if it has not ended.
func (c *client) stop() {
	if c.cmd.ProcessState == nil {
		c.in.Close()
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
}

// exit lets the program end by itself and waits for it.
func (c *client) exit(t testing.TB) {
	t.Helper()
	c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the program ended with %v\n%s", err, c.stderr.String())
	}
}

// do gives a command and returns the answer.
func (c *client) do(t testing.TB, format string, args ...any) string {
	t.Helper()
	command := fmt.Sprintf(format, args...)
	if _, err := io.WriteString(c.in, command+"\n"); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, c.stderr.String())
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.cmd.Wait()
		t.Fatalf("%s: the program ended: %v\n%s", command, c.cmd.ProcessState, c.stderr.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// want gives a command and compares the answer.
func (c *client) want(t testing.TB, want, format string, args ...any) {
	t.Helper()
	if got := c.do(t, format, args...); got != want {
		t.Errorf("%s: got %q, want %q", fmt.Sprintf(format, args...), got, want)
	}
}
