package preload_test

import (
	"fmt"
	"testing"
)

func TestLimitIsHeldExactlyByArrays(t *testing.T) {
	const limit = 64 * mib
	tests := []struct {
		name, call, end string
		want            int    // how many fit
		each            uint64 // of the first
	}{
		{"2D", "array %d 1000 1000", "array-destroy %d", 16, 4 * mib},
		{"3D", "array3d %d 256 256 33", "array-destroy %d", 6, 10 * mib},
		{"layered", "layered %d 1000 1000 3", "array-destroy %d", 5, 12 * mib},
		{"mipmapped", "mipmaps %d 1024 1024 11", "mipmaps-destroy %d", 10, 6 * mib},
		// Small ones share blocks; the last needs one to reserve.
		{"half blocks", "array %d 512 512", "array-destroy %d", 63, 2 * mib},
		{"pages", "array %d 100 100", "array-destroy %d", 31*32 + 1, 2 * mib},
		{"1D", "array %d 200000 0", "array-destroy %d", 63, 2 * mib},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 1)
			s := m.newShare(t, 0, "one", limit)
			c := m.client(t, 0)
			given := 0
			for given <= test.want && c.do(t, "%s", fmt.Sprintf(test.call, given)) == success {
				given++
			}
			if given != test.want {
				t.Fatalf("%d arrays were given, want %d", given, test.want)
			}
			c.want(t, outOfMemory, "%s", fmt.Sprintf(test.call, given))
			held := m.ledger(t, 0).Used
			s.checkCharged(t, held)
			if held > limit || held+2*test.each <= limit {
				t.Errorf("the hardware has given out %d MiB of %d", held>>20, limit>>20)
			}
			for i := range given {
				c.want(t, success, "%s", fmt.Sprintf(test.end, i))
			}
			s.checkCharged(t, 0)
			m.checkLedger(t, 0, 0)
			c.want(t, "400", "%s", fmt.Sprintf(test.end, 0)) // the driver's to say
			// Its context's end is an array's too.
			c.want(t, success, "%s", fmt.Sprintf(test.call, 0))
			c.want(t, success, "context 0 0")
			c.want(t, success, "%s", fmt.Sprintf(test.call, 1))
			c.want(t, success, "context-destroy 0")
			if test.each > 2*mib {
				s.checkCharged(t, test.each)
				m.checkLedger(t, 0, test.each)
			}
			c.want(t, success, "reset 0")
			s.checkCharged(t, 0)
			m.checkLedger(t, 0, 0)
		})
	}
}

// Where small arrays lie is the driver's secret, so what they were at most stays
// charged until all of them are gone.
func TestHolesBetweenSmallArraysStayCharged(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	for i := range 16 {
		c.want(t, success, "array %d 512 512", i)
	}
	for i := 0; i < 16; i += 2 {
		c.want(t, success, "array-destroy %d", i)
	}
	s.checkCharged(t, 16*mib)
	m.checkLedger(t, 0, 16*mib)
	for i := 1; i < 15; i += 2 {
		c.want(t, success, "array-destroy %d", i)
	}
	s.checkCharged(t, 16*mib)
	c.want(t, success, "array-destroy 15")
	s.checkCharged(t, 0)
}

func TestSparseArraysHoldWhatIsMappedIntoThem(t *testing.T) {
	for _, kind := range []string{"sparse", "deferred"} {
		m := newMachine(t, 1)
		s := m.newShare(t, 0, "one", 64*mib)
		c := m.client(t, 0)
		check := func(want uint64) {
			t.Helper()
			s.checkCharged(t, want)
			m.checkLedger(t, 0, want)
		}
		c.want(t, success, "%s 0 100000 10000 0", kind)
		check(0)
		c.want(t, success, "create 0 %d 1 0", 8*mib)
		c.want(t, success, "create 1 %d 1 0", 16*mib)
		c.want(t, success, "tile 0 0 5")
		c.want(t, success, "tile 0 1 6")
		c.want(t, success, "tile 0 1 7")
		c.want(t, success, "release 0")
		c.want(t, success, "release 1")
		check(24 * mib)
		c.want(t, success, "tile-unmap 0 0 5")
		check(16 * mib)
		c.want(t, success, "tile-unmap 0 0 9") // nothing is there
		c.want(t, success, "tile-unmap 0 0 6")
		check(16 * mib)
		c.want(t, success, "create 2 %d 1 0", 32*mib)
		c.want(t, success, "tile 0 2 7") // instead of the other
		check(32 * mib)
		c.want(t, success, "release 2")
		check(32 * mib)
		c.want(t, invalidValue, "tile 0 1 8") // no such handle any more
		check(32 * mib)
		c.want(t, success, "array-destroy 0")
		check(0)
	}
}

func TestArraysThatCannotBeCostNothing(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	c.want(t, invalidValue, "array 0 0 0")
	c.want(t, outOfMemory, "array 0 200000 100000")
	c.want(t, outOfMemory, "array 0 %d %d", uint64(1)<<63, uint64(1)<<63)
	c.want(t, outOfMemory, "mipmaps 0 %d %d 40", uint64(1)<<31, uint64(1)<<31)
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}

func TestArraysOfAGPUWithoutAShareAreNotLimited(t *testing.T) {
	m := newMachine(t, 2)
	s := m.newShare(t, 0, "one", 2*mib)
	c := m.client(t, 1)
	c.want(t, success, "array 0 5000 5000")
	c.want(t, success, "mipmaps 1 5000 5000 3")
	s.checkCharged(t, 0)
	c.want(t, success, "device 0")
	c.want(t, outOfMemory, "array 2 5000 5000")
	c.want(t, success, "array-destroy 0")
	c.want(t, success, "mipmaps-destroy 1")
	m.checkLedger(t, 1, 0)
}
