package gpu

import (
	"errors"
	"fmt"
	"slices"
)

// Severity is what a fault means for the work on a GPU.
type Severity string

// Severities, from mild to grave.
const (
	Informs  Severity = "Informs"  // one process's own error, or nothing that hurts work now
	Degraded Severity = "Degraded" // what runs may go on, but nothing should be begun
	Fatal    Severity = "Fatal"    // nothing computes, or nothing right, until the GPU is reset
)

var severities = []Severity{Informs, Degraded, Fatal}

// Exceeds says whether a severity is graver than another.
func (s Severity) Exceeds(other Severity) bool {
	return slices.Index(severities, s) > slices.Index(severities, other)
}

// Fault is something that is wrong with a GPU.
type Fault struct {
	Kind     string   `json:"kind"` // what it is, as the value of a taint: "xid-79"
	Severity Severity `json:"severity"`
	Note     string   `json:"note"` // the same for people, part of a sentence
}

// Health is what the driver says of a GPU when it is asked.
type Health struct {
	Faults []Fault `json:"faults,omitempty"` // that it has now
	// Sound: the driver can tell whether a GPU has to be recovered from past errors, and says that it has not. A driver that cannot
	// tell never says it.
	Sound bool `json:"sound,omitempty"`
}

// Event is what a GPU's driver tells when it happens.
type Event struct {
	GPU   string // UUID; empty: one of them changed, ask
	Fault Fault  // without a kind: the GPU changed, ask
}

// Lost is the fault of a GPU that does not answer.
var Lost = Fault{Kind: "lost", Severity: Fatal, Note: "it is lost and does not answer any more"}

// Silent is the fault of a GPU that does not answer although the others do, nobody knows why.
var Silent = Fault{Kind: "silent", Severity: Degraded, Note: "it does not answer now"}

// lostError says that a GPU does not answer since it is lost.
type lostError struct {
	index int
	error
}

func (e lostError) Unwrap() error { return e.error }

// LostError adds to an error that the GPU of an index is lost.
func LostError(index int, err error) error { return lostError{index, err} }

// LostIndex is the index of the GPU of which an error says that it is lost.
func LostIndex(err error) (int, bool) {
	var lost lostError
	ok := errors.As(err, &lost)
	return lost.index, ok
}

// DoubleBitECC is the fault of a GPU whose memory had an error that could not be corrected.
var DoubleBitECC = Fault{Kind: "double-bit-ecc", Severity: Degraded, Note: "double-bit ECC error"}

// XID is what an XID, one of the errors that the NVIDIA driver numbers, says of the GPU.
func XID(code uint64) Fault {
	known, ok := xids[code]
	if !ok {
		known = xid{Degraded, "an error that Aliquot does not know"}
	}
	return Fault{Kind: fmt.Sprintf("xid-%d", code), Severity: known.severity, Note: fmt.Sprintf("XID %d: %s", code, known.means)}
}

type xid struct {
	severity Severity
	means    string
}

// xids are from NVIDIA's catalog (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): an immediate action of
// IGNORE or RESTART_APP informs, RESET_GPU and RESTART_BM are fatal. Those that NVIDIA's device plugin for Kubernetes takes
// for errors of applications (13, 31, 43, 45, 68, 109) inform. For 48 and 74 the catalog has workflows, which begin with a
// drain when the error goes on: what runs may go on.
var xids = map[uint64]xid{
	8:   {Informs, "a process's work stopped"},
	11:  {Informs, "a process sent corrupted commands"},
	13:  {Informs, "exception in a process's kernel"},
	31:  {Informs, "a process accessed memory that is not its own"},
	32:  {Informs, "a process sent corrupted commands"},
	43:  {Informs, "a process's work was stopped"},
	45:  {Informs, "a process's work was cleaned up"},
	48:  {Degraded, "double-bit ECC error"},
	62:  {Fatal, "internal micro-controller halted"},
	63:  {Informs, "a row of memory is remapped at the next reset"},
	64:  {Fatal, "a row of memory could not be remapped"},
	68:  {Informs, "exception in the video decoder"},
	69:  {Informs, "exception in a process's graphics class"},
	74:  {Degraded, "NVLink error"},
	79:  {Fatal, "the GPU has fallen off the bus"},
	80:  {Informs, "a process sent corrupted data"},
	92:  {Informs, "many single-bit ECC errors, all corrected"},
	93:  {Informs, "the InfoROM is written too often"},
	94:  {Informs, "memory error that hit one process"},
	95:  {Fatal, "memory error that may have hit any process"},
	106: {Informs, "test message"},
	107: {Informs, "test message"},
	109: {Informs, "timeout of a context switch"},
	119: {Fatal, "the GPU system processor does not answer"},
	120: {Fatal, "error of the GPU system processor"},
	121: {Informs, "error of the link to the CPU, corrected"},
	140: {Fatal, "memory error that may not have been contained"},
	154: {Informs, "what the GPU needs to recover has changed"}, // and is asked for
	155: {Fatal, "NVLink error"},
	156: {Fatal, "a resource of the GPU is retired at the next reset"},
	157: {Informs, "a resource of the GPU could not be retired"},
}
