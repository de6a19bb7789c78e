package simdriver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Ledger is what the hardware has given out at one moment.
type Ledger struct {
	GPUs       []LedgerGPU       `json:"gpus"`
	Containers []LedgerContainer `json:"containers"`
	Processes  []LedgerProcess   `json:"processes"`
}

// Usage is in bytes, whole blocks of 2 MiB. Peak is the most there ever was.
type Usage struct {
	Used uint64 `json:"used"`
	Peak uint64 `json:"peak"`
}

// LedgerGPU is one card, in the description's order.
type LedgerGPU struct {
	UUID     string `json:"uuid"`
	Capacity uint64 `json:"capacity"`
	Usage
	// Busy is for how long it has worked.
	Busy time.Duration `json:"busy"`
}

// LedgerContainer adds up the processes of one container: a mount namespace
// and a host name, which in a pod is the pod's name. It outlives them.
type LedgerContainer struct {
	Hostname       string `json:"hostname"`
	MountNamespace uint64 `json:"mountNamespace"`
	// GPUs has an entry for each card that it ever had memory of, by UUID.
	GPUs map[string]Usage `json:"gpus"`
}

// LedgerProcess is a living process that has, or had, a context.
type LedgerProcess struct {
	PID            int               `json:"pid"` // in its own pid namespace
	Command        string            `json:"command"`
	Hostname       string            `json:"hostname"`
	MountNamespace uint64            `json:"mountNamespace"`
	Used           map[string]uint64 `json:"used"` // by GPU UUID
	// Partition is the UUID of the MIG device that it works on, if any.
	Partition string `json:"partition"`
	// Busy is for how long it had a GPU, by UUID.
	Busy map[string]time.Duration `json:"busy"`
}

// Ledger reads the ledger, after freeing what dead processes left in it.
func (r *Root) Ledger() (Ledger, error) {
	output, err := r.runLedger()
	if err != nil {
		return Ledger{}, fmt.Errorf("read the ledger of %s: %w", r.Path, err)
	}
	var ledger Ledger
	if err := json.Unmarshal(output, &ledger); err != nil {
		return Ledger{}, fmt.Errorf("read the ledger of %s: %w", r.Path, err)
	}
	return ledger, nil
}

// runLedger runs the ledger program, which alone may open the files of a root.
func (r *Root) runLedger(args ...string) ([]byte, error) {
	cache, err := built(context.Background())
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(cache, ledgerProgram), append([]string{r.Path}, args...)...)
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return output, nil
}

// Container adds up all containers of one host name, for tests that know only
// the pod. The peak is then the largest that can be told: the sum of peaks.
func (l Ledger) Container(hostname string) map[string]Usage {
	sum := map[string]Usage{}
	for _, c := range l.Containers {
		if c.Hostname != hostname {
			continue
		}
		for uuid, usage := range c.GPUs {
			sum[uuid] = Usage{sum[uuid].Used + usage.Used, sum[uuid].Peak + usage.Peak}
		}
	}
	return sum
}
