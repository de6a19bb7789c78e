// Package simclock gives a set of processes a virtual clock, so that what takes half a minute of GPU time is simulated in
// a second, the same each time. It changes nothing in the programs: a preloaded library answers the calls that read the
// monotonic clock and that sleep.
package simclock

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed native/simclock.c
var source []byte

// The layout of struct page in simclock.c.
const (
	maxMembers = 64
	headerSize = 16
	memberSize = 16
	expected   = 1
)

// Clock is a clock that a number of processes share.
type Clock struct {
	library, page string
}

// Build compiles the library that processes preload into dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	src, library := filepath.Join(dir, "simclock.c"), filepath.Join(dir, "libsimclock.so")
	if err := os.WriteFile(src, source, 0o644); err != nil {
		return "", err
	}
	output, err := exec.CommandContext(ctx, "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", library, src).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile the virtual clock: %w: %s", err, output)
	}
	return library, nil
}

// New makes a clock at time 0 for so many processes; none of them goes on until all that come before it in time have.
// A process that reads the clock may be lookahead before the others.
func New(library, page string, members int, lookahead time.Duration) (*Clock, error) {
	if members < 1 || members > maxMembers {
		return nil, fmt.Errorf("a virtual clock has 1 to %d members, not %d", maxMembers, members)
	}
	content := make([]byte, headerSize+maxMembers*memberSize)
	order := binary.NativeEndian
	order.PutUint32(content[4:], uint32(members))
	order.PutUint64(content[8:], uint64(lookahead.Nanoseconds()))
	for i := range members {
		order.PutUint32(content[headerSize+i*memberSize:], expected)
		order.PutUint64(content[headerSize+i*memberSize+8:], 1_000_000_000) // a time of 0 means "never" to some
	}
	if err := os.WriteFile(page, content, 0o600); err != nil {
		return nil, err
	}
	return &Clock{library: library, page: page}, nil
}

// Env is what the i-th process needs in its environment, with the libraries to preload after the clock.
func (c *Clock) Env(i int, preload ...string) []string {
	libraries := c.library
	for _, library := range preload {
		libraries = library + ":" + libraries
	}
	return []string{"LD_PRELOAD=" + libraries, "SIMCLOCK=" + c.page, "SIMCLOCK_MEMBER=" + strconv.Itoa(i)}
}
