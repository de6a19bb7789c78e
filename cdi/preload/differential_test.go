package preload_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var (
	seeds     = flag.Int("seeds", 40, "how many random programs are run with the library and without")
	firstSeed = flag.Uint64("seed", 1, "the first of them")
)

// script makes a random program for testdata/client.c. What has ended is not
// used again: whether its number is given to something new by then depends on
// where things happen to lie in memory, which the library may change.
type script struct {
	*rand.Rand
	lines []string
	alive map[string][]int // kind to numbers
	next  map[string]int
	of    map[int][]int // pool to pointers
}

const (
	pointerKind = "pointer"
	handleKind  = "handle"
	poolKind    = "pool"
	contextKind = "context"
	greenKind   = "green"
	streamKind  = "stream"
	arrayKind   = "array"
	mipmapsKind = "mipmaps"
)

// mostOf is how many numbers the client has of a kind.
var mostOf = map[string]int{poolKind: 60, contextKind: 60, greenKind: 60, streamKind: 60}

func (s *script) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// create is a new number of a kind. Of the few there are the last one serves for
// all that would be too many.
func (s *script) create(kind string) int {
	n := s.next[kind]
	if most := mostOf[kind]; most == 0 || n < most {
		s.next[kind]++
		s.alive[kind] = append(s.alive[kind], n)
	}
	return n
}

// any is one that was created, whether or not the driver granted it. Without
// one it is a number that nothing has.
func (s *script) any(kind string) int {
	if list := s.alive[kind]; len(list) > 0 {
		return list[s.IntN(len(list))]
	}
	if mostOf[kind] > 0 {
		return 63
	}
	return 100000
}

// end is any, for the last time.
func (s *script) end(kind string) int {
	n := s.any(kind)
	s.remove(kind, n)
	return n
}

func (s *script) remove(kind string, n int) {
	s.alive[kind] = slices.DeleteFunc(s.alive[kind], func(other int) bool { return other == n })
}

// contextEnds takes along what may have been in it. A few right calls see whether
// there still is one; of wrong ones the driver and the library may notice the
// missing context or the wrong argument first.
func (s *script) contextEnds() {
	for _, kind := range []string{pointerKind, arrayKind, mipmapsKind, streamKind} {
		s.alive[kind] = nil
	}
	s.add("alloc %d 4096\nfree %d\ninfo\ndevice %d", s.next[pointerKind], s.next[pointerKind], s.IntN(2))
}

func pick[T any](s *script, of ...T) T { return of[s.IntN(len(of))] }

// bytes is a size at or beside a boundary of something, or a random one, and now
// and then more than the card has.
func (s *script) bytes() uint64 {
	if s.IntN(12) == 0 {
		return pick[uint64](s, 0, 20<<30, 1<<40, 1<<62, 1<<64-1)
	}
	return pick[uint64](s, 1, 256, 511, 512, 4096, mib-1, mib, mib+1, 2*mib, 2*mib+1, 3*mib, 32*mib, s.Uint64N(16*mib))
}

func (s *script) blocks() uint64 {
	return pick[uint64](s, 0, 1, 2*mib, 2*mib, 4*mib, 6*mib, 2*mib+4096)
}

// device is mostly the limited one, or the other, or none.
func (s *script) device() int { return pick(s, 0, 0, 0, 1, 1, 7) }

func (s *script) memory() {
	switch s.IntN(12) {
	case 0, 1, 2:
		s.add("alloc %d %d", s.create(pointerKind), s.bytes())
	case 3:
		s.add("managed %d %d", s.create(pointerKind), s.bytes())
	case 4:
		// What overflows is refused before the driver calls it wrong.
		s.add("pitch %d %d %d", s.create(pointerKind), min(s.bytes(), 1<<40), pick(s, 0, 1, 7, 100, 4096))
	case 5:
		s.add("fill %d %d 20", s.next[pointerKind], pick(s, 100, 4096, 300000))
		for range 20 {
			s.create(pointerKind)
		}
	case 6:
		n := s.end(pointerKind)
		s.add("free %d\nfree %d", n, n) // the second is wrong
	case 7:
		s.add("free-pointer %d", pick[uint64](s, 0, 1, 4096, 1<<63))
	default:
		s.add("free %d", s.end(pointerKind))
	}
}

func (s *script) streamOrdered() {
	switch s.IntN(12) {
	case 0, 1:
		s.add("async %d %d %d", s.create(pointerKind), s.bytes(), s.any(streamKind))
	case 2, 3:
		// What no limit allows is refused before the driver sees that
		// there is no such pool.
		n, pool := s.create(pointerKind), s.any(poolKind)
		s.of[pool] = append(s.of[pool], n)
		s.add("from-pool %d %d %d", n, min(s.bytes(), 20<<30), pool)
	case 4, 5:
		s.add("free-async %d", s.end(pointerKind))
	case 6:
		s.add("pool %d %d", s.create(poolKind), s.device())
	case 7:
		s.endPool()
	case 8:
		s.add("trim %d %d", s.any(poolKind), s.bytes())
	case 9:
		s.add("threshold %d %d", s.any(poolKind), s.bytes())
	case 10:
		s.add("sync")
	default:
		s.add("stream %d", s.create(streamKind))
	}
}

// endPool frees what is left in a pool first: from then on the library charges
// the pool until the last of it is freed, though the driver gives back each.
func (s *script) endPool() {
	pool := s.end(poolKind)
	for _, n := range s.of[pool] {
		if slices.Contains(s.alive[pointerKind], n) {
			s.remove(pointerKind, n)
			s.add("free %d", n)
		}
	}
	s.add("pool-destroy %d", pool)
}

func (s *script) virtual() {
	switch s.IntN(8) {
	case 0, 1:
		s.add("create %d %d %d %d", s.create(handleKind), s.blocks(), pick(s, 1, 1, 1, 2, 3, 0, 9), s.device())
	case 2, 3:
		n, size := s.create(pointerKind), s.blocks()
		s.add("reserve %d %d\nmap %d %d 0 %d", n, size, n, s.any(handleKind), size)
		if s.IntN(2) == 0 {
			s.add("retain %d %d 0", s.create(handleKind), n)
		}
		if s.IntN(2) == 0 {
			s.add("unmap %d 0 %d", n, size)
		}
		s.remove(pointerKind, n) // no free of it: it is no allocation
	case 4:
		s.add("external %d %d", s.create(pointerKind), s.bytes())
	default:
		s.add("release %d", s.end(handleKind))
	}
}

// arrays that are none, or large: holes between small ones stay charged longer
// than the driver keeps them.
func (s *script) arrays() {
	width, height, depth := pick(s, 4096, 8191, 1<<20), pick(s, 128, 333), pick(s, 0, 1, 5)
	if s.IntN(5) == 0 {
		width = 0
	}
	switch s.IntN(7) {
	case 0:
		s.add("array %d %d %d", s.create(arrayKind), width, height)
	case 1:
		s.add("%s %d %d %d %d", pick(s, "array3d", "layered", "sparse", "deferred"), s.create(arrayKind), width, height, depth)
	case 2:
		s.add("mipmaps %d %d %d %d", s.create(mipmapsKind)+1<<17, width, height, pick(s, 0, 1, 3, 99))
	case 3:
		s.add("mipmaps-destroy %d", s.end(mipmapsKind)+1<<17)
	default:
		s.add("array-destroy %d", s.end(arrayKind))
	}
}

func (s *script) contexts() {
	switch s.IntN(9) {
	case 0:
		s.add("%s %d %d", pick(s, "context", "context-v3", "context-v4"), s.create(contextKind), s.device())
	case 1:
		s.add("context-destroy %d", s.end(contextKind))
		s.contextEnds()
	case 2:
		s.add("green %d %d", s.create(greenKind), s.device())
	case 3:
		s.add("green-destroy %d", s.end(greenKind))
		s.contextEnds()
	case 4:
		s.add("%s %d", pick(s, "reset", "release-primary", "primary"), s.device())
		s.contextEnds()
	case 5:
		// Not below what a context begins with: that is in its cost, and
		// growing again is charged from there.
		s.add("limit %d %d", pick(s, 0, 1, 2, 7), pick(s, 8*mib, 16*mib, 64*mib))
	default:
		s.add("device %d", s.device())
	}
}

func newScript(seed uint64, calls int) string {
	s := &script{Rand: rand.New(rand.NewPCG(seed, 1)), alive: map[string][]int{}, next: map[string]int{}, of: map[int][]int{}}
	for s.IntN(3) == 0 {
		s.memory() // before cuInit, or without a context
	}
	s.add("init\ndevice 0")
	for len(s.lines) < calls {
		switch s.IntN(12) {
		case 0, 1, 2:
			s.memory()
		case 3, 4, 5:
			s.streamOrdered()
		case 6, 7:
			s.virtual()
		case 8, 9:
			s.arrays()
		case 10:
			s.contexts()
		default:
			s.add("%s", pick(s, "info", "info-null", "total 0", "total 1", "total 7", "nvml 0"))
		}
	}
	s.add("info\ndevice 0\ninfo\ndevice 1\ninfo\nnvml 0")
	return strings.Join(s.lines, "\n") + "\n"
}

// perform gives a script to the client and returns each line with its answer.
func (m *machine) perform(t *testing.T, script string, preload bool) []string {
	t.Helper()
	cmd := exec.Command(compile(t, "client"), "dlsym")
	cmd.Dir = m.dir
	cmd.Env = m.environ(preload)
	cmd.Stdin = strings.NewReader(script)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("with the library %v: %v\n%s", preload, err, stderr.String())
	}
	answers := strings.Split(strings.TrimSpace(string(output)), "\n")
	lines := strings.Split(strings.TrimSpace(script), "\n")
	if len(answers) != len(lines) {
		t.Fatalf("with the library %v: %d answers to %d commands", preload, len(answers), len(lines))
	}
	for i := range lines {
		if strings.HasPrefix(lines[i], "nvml ") {
			// What is used is the share's, which is not all that is used
			// of the card: NVML's own figure has what it reserves.
			f := strings.Fields(answers[i])
			answers[i] = strings.Join([]string{f[0], f[1], f[3], f[4], f[6]}, " ")
		}
		lines[i] += " -> " + answers[i]
	}
	return lines
}

// With a quota that is never short a program cannot tell that the library is
// there: every call of every kind, right or wrong, has the same result and the
// same figures.
func TestWithoutShortageNothingDiffers(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+uint64(*seeds); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			const contextMiB = 100
			script := newScript(seed, 400)
			var lines [2][]string
			for i, preload := range []bool{false, true} {
				m := newMachineOf(t, hardware(2, contextMiB))
				s := m.newShare(t, 0, "one", 64<<30)
				s.setAgent(t, map[int64]uint32{contextMiBOffset: contextMiB})
				lines[i] = m.perform(t, script, preload)
			}
			for i := range lines[0] {
				if lines[0][i] != lines[1][i] {
					t.Fatalf("after\n%s\nthe answer is %s, with the library %s", strings.Join(lines[0][max(0, i-40):i], "\n"), lines[0][i], lines[1][i])
				}
			}
		})
	}
}
