package quota

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/gpu"
)

// ErrOvercommitted is what Reserve returns, wrapped, when a GPU has too little left.
var ErrOvercommitted = errors.New("GPU is already given out")

// ErrTwoModes is wrapped beside ErrOvercommitted when the GPU is partitioned where shares of it are wanted, or shared
// where partitions are.
var ErrTwoModes = errors.New("one GPU, one mode")

// Share is what one claim got of one GPU or of one of its partitions.
type Share struct {
	GPU       string     // the GPU's UUID, which survives renumbering
	Partition *Partition // nil: of the GPU itself
	Limits    Limits
}

// Partition is a part of a GPU that may be shared like a GPU.
type Partition struct {
	Name        string // tells those of one GPU apart
	Placement   gpu.Placement
	MemoryBytes uint64 // that can be given out
}

// Ledger holds what each claim has of each GPU of the node. It is the last line of defence: the API may say that a share
// is free while its former owner still runs here. It is not safe for concurrent use.
type Ledger struct {
	memory map[string]uint64 // bytes that can be given out, by GPU UUID
	claims map[types.UID][]Share
}

// NewLedger returns a ledger without claims.
func NewLedger() *Ledger {
	return &Ledger{memory: map[string]uint64{}, claims: map[types.UID][]Share{}}
}

// SetGPU says how many bytes of a GPU can be given out. Shares that were reserved before stay.
func (l *Ledger) SetGPU(uuid string, memory uint64) {
	l.memory[uuid] = memory
}

// Reserve books a claim's shares, all or none, in place of what the claim had before: a replayed prepare books the same
// again. It refuses what would give out more of a GPU than it has, put anything beside a whole one, or share and partition
// one at once.
func (l *Ledger) Reserve(claim types.UID, shares []Share) error {
	want := map[string][]Share{}
	for _, s := range shares {
		want[s.GPU] = append(want[s.GPU], s)
	}
	for _, uuid := range slices.Sorted(maps.Keys(want)) {
		if err := l.fits(claim, uuid, want[uuid]); err != nil {
			return err
		}
	}
	l.claims[claim] = slices.Clone(shares)
	return nil
}

// Adopt books what is known to be live already, without a check: a running container cannot be refused. Check tells
// whether that overcommits a GPU.
func (l *Ledger) Adopt(claim types.UID, shares []Share) {
	l.claims[claim] = slices.Clone(shares)
}

// Release forgets a claim. An unknown claim is no error.
func (l *Ledger) Release(claim types.UID) {
	delete(l.claims, claim)
}

// Claims lists the claims that hold something, in no order.
func (l *Ledger) Claims() []types.UID {
	return slices.Collect(maps.Keys(l.claims))
}

// Shares is what a claim holds.
func (l *Ledger) Shares(claim types.UID) []Share {
	return slices.Clone(l.claims[claim])
}

// Check returns an error for each GPU of which more is given out than it has.
func (l *Ledger) Check() error {
	var errs []error
	for _, uuid := range slices.Sorted(maps.Keys(l.memory)) {
		errs = append(errs, l.fits("", uuid, nil))
	}
	return errors.Join(errs...)
}

// fits says whether a GPU can hold the wanted shares beside those of all claims but one.
func (l *Ledger) fits(except types.UID, uuid string, want []Share) error {
	total, known := l.memory[uuid]
	if !known {
		return fmt.Errorf("GPU %s is not on this node", uuid)
	}
	holders := l.holders(uuid, except)
	all := slices.Clone(want)
	for _, claim := range holders {
		for _, s := range l.claims[claim] {
			if s.GPU == uuid {
				all = append(all, s)
			}
		}
	}
	if err := together(uuid, total, all); err != nil {
		return fmt.Errorf("%w: %w, claims %v hold it", ErrOvercommitted, err, holders)
	}
	return nil
}

// holders are the claims that hold something of a GPU, sorted, all but one.
func (l *Ledger) holders(uuid string, except types.UID) (holders []types.UID) {
	for claim, shares := range l.claims {
		if claim != except && slices.ContainsFunc(shares, func(s Share) bool { return s.GPU == uuid }) {
			holders = append(holders, claim)
		}
	}
	slices.Sort(holders)
	return holders
}

// together says whether a GPU can hold all of some shares at once.
func together(uuid string, total uint64, shares []Share) error {
	parts := map[string][]Share{}
	var whole []Share
	for _, s := range shares {
		if s.Partition == nil {
			whole = append(whole, s)
			continue
		}
		for name, other := range parts {
			if name != s.Partition.Name && other[0].Partition.Placement.Overlaps(s.Partition.Placement) {
				return fmt.Errorf("partitions %s and %s of GPU %s would overlap", min(name, s.Partition.Name), max(name, s.Partition.Name), uuid)
			}
		}
		parts[s.Partition.Name] = append(parts[s.Partition.Name], s)
	}
	if len(whole) > 0 && len(parts) > 0 {
		return fmt.Errorf("%w: GPU %s would be shared and partitioned at once", ErrTwoModes, uuid)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		part := parts[name]
		if err := beside(fmt.Sprintf("partition %s of GPU %s", name, uuid), part[0].Partition.MemoryBytes, part); err != nil {
			return err
		}
	}
	return beside("GPU "+uuid, total, whole)
}

// beside says whether a device can hold shares beside each other.
func beside(device string, total uint64, shares []Share) error {
	var memory uint64
	var cores int
	for _, s := range shares {
		if s.Limits.Whole && len(shares) > 1 {
			return fmt.Errorf("%s would be whole and shared at once", device)
		}
		memory += s.Limits.MemoryBytes
		cores += s.Limits.CorePercent
	}
	if memory > total || cores > v1alpha1.AllCores {
		return fmt.Errorf("%s would give out %d of %d bytes and %d of %d percent", device, memory, total, cores, v1alpha1.AllCores)
	}
	return nil
}
