package simdriver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
)

// Fault is one thing that goes wrong, as native/faults.h and native/cuda_fault.c
// list them.
type Fault string

// FailCall makes a function return a number, of nvmlReturn_t or of CUresult, by
// its exported name.
func FailCall(function string, code int) Fault {
	return Fault(fmt.Sprintf("%s error %d", function, code))
}

// FailNthCall makes one call of a function return a number: the n-th that each
// process makes from now on, counted from 1.
func FailNthCall(function string, n, code int) Fault {
	return Fault(fmt.Sprintf("%s call %d error %d", function, n, code))
}

// OwnPointers makes cuGetProcAddress give other pointers than dlsym does. They
// lead to the same functions.
const OwnPointers Fault = "procaddr differ"

// LoseGPU makes every NVML call on a card say that it fell off the bus. Cards
// are numbered as in the description.
func LoseGPU(gpu int) Fault { return Fault(fmt.Sprintf("gpu %d lost", gpu)) }

// XID is an event that those who wait for it see once.
func XID(gpu, code int) Fault { return Fault(fmt.Sprintf("gpu %d xid %d", gpu, code)) }

// Event is an event of one of NVML's types other than XIDs, once.
func Event(gpu, kind int) Fault { return Fault(fmt.Sprintf("gpu %d event %d", gpu, kind)) }

// Recovery is what a card asks for, of nvmlDeviceGpuRecoveryAction_t.
func Recovery(gpu, action int) Fault { return Fault(fmt.Sprintf("gpu %d recovery %d", gpu, action)) }

// RemapPending makes a card say that a row of its memory is remapped when it is next reset.
func RemapPending(gpu int) Fault { return Fault(fmt.Sprintf("gpu %d remap 1", gpu)) }

// RemapFailed makes a card say that a row of its memory could not be remapped.
func RemapFailed(gpu int) Fault { return Fault(fmt.Sprintf("gpu %d remap 2", gpu)) }

// Slowdown holds a card's clocks back, for reasons that are bits of NVML's.
func Slowdown(gpu, reasons int) Fault { return Fault(fmt.Sprintf("gpu %d slowdown %d", gpu, reasons)) }

// Fault adds faults. Programs that run see them at their next call, and begin to
// count anew.
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
	if err := os.Rename(r.State("faults.new"), r.State("faults")); err != nil {
		return err
	}
	return r.writeCallFaults([]byte(b.String()))
}

// ClearFaults makes all faults end.
func (r *Root) ClearFaults() error {
	if err := os.Remove(r.State("faults")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return r.writeCallFaults(nil)
}

const (
	callFaultsSize = 4096 // a page: a version of 32 bits, and text
	callFaultsText = callFaultsSize - 4
)

// writeCallFaults writes what libcuda is to do, in place, since processes have it
// mapped: first that there is nothing, then the text, then that it is another.
func (r *Root) writeCallFaults(text []byte) error {
	if len(text) >= callFaultsText {
		return fmt.Errorf("%d bytes of faults, at most %d", len(text), callFaultsText-1)
	}
	file, err := os.OpenFile(r.State("call-faults"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	version := make([]byte, 4)
	if _, err := file.WriteAt(version, 0); err != nil {
		return err
	}
	page := append(text, make([]byte, callFaultsText-len(text))...)
	if _, err := file.WriteAt(page, int64(len(version))); err != nil {
		return err
	}
	if len(text) > 0 {
		binary.NativeEndian.PutUint32(version, rand.Uint32()|1)
	}
	_, err = file.WriteAt(version, 0)
	return err
}
