// Package workload builds cuda-alloc, a small program on the CUDA driver API
// that takes device memory until it is refused and prints what it got, and
// reads what it prints.
//
// It has no kernels and no CUDA runtime: it stands for what a program does to
// memory, not for what it computes. native/cuda_alloc.c lists its options.
package workload

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed native/cuda_alloc.c
var source []byte

// Unexpected is the exit status of a program that did not get what it was told to
// expect.
const Unexpected = 3

// Program is the name of the program that Build makes.
const Program = "cuda-alloc"

// Build compiles the program into dir, linked against the libcuda.so.1 of
// libraryDir (a simulated driver's), and returns its path. It runs with
// whatever libcuda.so.1 it finds later.
func Build(ctx context.Context, dir, libraryDir string) (string, error) {
	program := filepath.Join(dir, Program)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "gcc", "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
		"-o", program, "-x", "c", "-", "-L", libraryDir, "-l:libcuda.so.1")
	cmd.Stdin = bytes.NewReader(source)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s: %w\n%s", Program, err, strings.TrimSpace(string(output)))
	}
	return program, nil
}

// Event is one line that the program prints.
type Event struct {
	// Event is "device", "allocated", "holding", "error" or "unexpected".
	Event       string `json:"event"`
	PID         int    `json:"pid"`
	Device      int    `json:"device"`
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	Total       uint64 `json:"total"`    // bytes, cuDeviceTotalMem
	MemFree     uint64 `json:"memFree"`  // bytes, cuMemGetInfo
	MemTotal    uint64 `json:"memTotal"` // bytes, cuMemGetInfo
	API         string `json:"api"`
	Bytes       uint64 `json:"bytes"` // what it was granted
	Allocations int    `json:"allocations"`
	Result      string `json:"result"` // the CUresult that refused, or failed
	Call        string `json:"call"`   // of an error: the call that failed
}

// Events reads what the program printed. Lines that are no JSON objects, as a
// container's log may hold, are skipped.
func Events(output []byte) ([]Event, error) {
	var events []Event
	lines := bufio.NewScanner(bytes.NewReader(output))
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		var event Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read a line of %s: %w: %s", Program, err, line)
		}
		events = append(events, event)
	}
	return events, lines.Err()
}

// Select gives the events of one kind.
func Select(events []Event, kind string) []Event {
	var selected []Event
	for _, event := range events {
		if event.Event == kind {
			selected = append(selected, event)
		}
	}
	return selected
}
