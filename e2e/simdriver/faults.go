package simdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Fault is one thing that goes wrong, as native/faults.h lists them.
type Fault string

// FailCall makes an NVML function return a number of nvmlReturn_t.
func FailCall(function string, code int) Fault {
	return Fault(fmt.Sprintf("%s error %d", function, code))
}

// LoseGPU makes every NVML call on a card say that it fell off the bus. Cards
// are numbered as in the description.
func LoseGPU(gpu int) Fault { return Fault(fmt.Sprintf("gpu %d lost", gpu)) }

// XID is an event that those who wait for it see once.
func XID(gpu, code int) Fault { return Fault(fmt.Sprintf("gpu %d xid %d", gpu, code)) }

// Fault adds faults. Programs that run see them at their next call.
func (r *Root) Fault(faults ...Fault) error {
	old, err := os.ReadFile(r.State("faults"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var b strings.Builder
	b.Write(old)
	for _, fault := range faults {
		fmt.Fprintln(&b, fault)
	}
	// By rename, so that nobody reads half a line.
	if err := os.WriteFile(r.State("faults.new"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(r.State("faults.new"), r.State("faults"))
}

// ClearFaults makes all faults end.
func (r *Root) ClearFaults() error {
	if err := os.Remove(r.State("faults")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
