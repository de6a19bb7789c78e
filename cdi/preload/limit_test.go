package preload_test

import (
	"fmt"
	"testing"
)

func TestLimitIsHeldExactlyByEachCall(t *testing.T) {
	const limit = 64 * mib
	tests := []struct {
		name string
		// call allocates under a number; it is repeated until it is refused.
		call  string
		each  uint64 // what the hardware gives for one
		first []string
	}{
		{name: "cuMemAlloc large", call: "alloc %d 3145728", each: 4 * mib},
		{name: "cuMemAlloc whole blocks", call: "alloc %d 8388608", each: 8 * mib},
		{name: "cuMemAlloc 1 MiB and a byte", call: "alloc %d 1048577", each: 2 * mib},
		{name: "cuMemAlloc half blocks", call: "alloc %d 1048576", each: 1 * mib},
		{name: "cuMemAllocManaged", call: "managed %d 4194304", each: 4 * mib},
		{name: "cuMemAllocManaged small", call: "managed %d 4096", each: 2 * mib},
		{name: "cuMemAllocPitch", call: "pitch %d 1000 4096", each: 4 * mib},
		{name: "cuMemAllocAsync", call: "async %d 4194304", each: 4 * mib},
		{name: "cuMemAllocFromPoolAsync", call: "from-pool %d 4194304 0", each: 4 * mib, first: []string{"pool 0 0"}},
		{name: "cuMemCreate", call: "create %d 4194304 1 0", each: 4 * mib},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 1)
			s := m.newShare(t, 0, "one", limit)
			c := m.client(t, 0)
			for _, command := range test.first {
				c.want(t, success, "%s", command)
			}
			given := 0
			for c.do(t, "%s", fmt.Sprintf(test.call, given)) == success {
				given++
				if given > limit/mib {
					t.Fatal("the limit is not held")
				}
			}
			c.want(t, outOfMemory, "%s", fmt.Sprintf(test.call, given))
			// Of two allocations in a block, the second is refused only
			// when there is no block left to reserve for it.
			want := int(limit / test.each)
			if test.each < 2*mib {
				want--
			}
			if given != want {
				t.Errorf("%d allocations were given, want %d", given, want)
			}
			m.checkLedger(t, 0, limit)
			s.checkCharged(t, limit)
			if peak := m.ledger(t, 0).Peak; peak > limit {
				t.Errorf("the hardware once gave out %d, over the limit %d", peak, limit)
			}
			c.exit(t)
			m.checkLedger(t, 0, 0)
		})
	}
}

func TestFreeGivesQuotaBack(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	c := m.client(t, 0)
	for _, free := range []string{"free", "free-async"} {
		for range 3 {
			c.want(t, success, "alloc 0 16777216")
			c.want(t, outOfMemory, "alloc 1 1")
			c.want(t, success, "%s 0", free)
			s.checkCharged(t, 0)
			m.checkLedger(t, 0, 0)
		}
	}
}

func TestSmallAllocationsAreChargedByTheBlock(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 4*mib)
	c := m.client(t, 0)
	c.want(t, "1000 0", "fill 0 512 1000")
	s.checkCharged(t, 2*mib)
	m.checkLedger(t, 0, 2*mib)
	for i := range 1000 {
		c.want(t, success, "free %d", i)
		want := uint64(2 * mib)
		if i == 999 {
			want = 0
		}
		if i%333 == 0 {
			s.checkCharged(t, want)
		}
	}
	m.checkLedger(t, 0, 0)
}

func TestAPlaceThatIsUsedAgainCountsAgain(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 4*mib)
	c := m.client(t, 0)
	c.want(t, "2 0", "fill 0 512 2")
	c.want(t, success, "free 0")
	c.want(t, success, "alloc 2 512") // where the first one was
	c.want(t, success, "free 1")
	c.want(t, invalidValue, "free 1")
	s.checkCharged(t, 2*mib)
	m.checkLedger(t, 0, 2*mib)
	c.want(t, success, "free 2")
	s.checkCharged(t, 0)
}

func TestASmallAllocationNeedsABlockOfQuota(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 2*mib)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 512")
	c.want(t, outOfMemory, "alloc 1 512")
	c.want(t, success, "free 0")
	c.want(t, success, "alloc 1 512")
}

func TestTwoProcessesShareOneLimit(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	a, b := m.client(t, 0), m.client(t, 0)
	a.want(t, success, "alloc 0 %d", 20*mib)
	b.want(t, outOfMemory, "alloc 0 %d", 14*mib)
	b.want(t, success, "alloc 0 %d", 12*mib)
	a.want(t, outOfMemory, "alloc 1 1")
	m.checkLedger(t, 0, 32*mib)
	a.exit(t)
	// The dead one's slot is found when memory is short.
	b.want(t, success, "alloc 1 %d", 20*mib)
	s.checkCharged(t, 32*mib)
	m.checkLedger(t, 0, 32*mib)
}

func TestSharesOfOneGPUAddUp(t *testing.T) {
	m := newMachine(t, 1)
	one := m.newShare(t, 0, "one", 11*mib)
	two := m.newShare(t, 0, "two", 21*mib)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 26*mib) // more than either
	c.want(t, outOfMemory, "alloc 1 %d", 8*mib)
	c.want(t, success, "alloc 1 %d", 6*mib)
	one.checkCharged(t, 11*mib)
	two.checkCharged(t, 21*mib)
	m.checkLedger(t, 0, 32*mib)
	c.want(t, success, "free 0")
	m.checkLedger(t, 0, 6*mib)
	if a, _ := one.charged(t); true {
		if b, _ := two.charged(t); a+b != 6*mib {
			t.Errorf("%d MiB are charged, want 6", (a+b)>>20)
		}
	}
	c.want(t, success, "alloc 0 %d", 26*mib)
	c.want(t, success, "free 0")
	c.want(t, success, "free 1")
	one.checkCharged(t, 0)
	two.checkCharged(t, 0)
}

func TestAGPUWithoutAShareIsNotLimited(t *testing.T) {
	m := newMachine(t, 2)
	m.newShare(t, 0, "one", 8*mib)
	c := m.client(t, 1)
	c.want(t, success, "alloc 0 %d", 1024*mib)
	c.want(t, success, "create 0 %d 1 1", 1024*mib)
	// By the handle's device, not by the current context's.
	c.want(t, outOfMemory, "create 1 %d 1 0", 16*mib)
	c.want(t, success, "device 0")
	c.want(t, outOfMemory, "alloc 1 %d", 16*mib)
	c.want(t, success, "create 1 %d 1 1", 16*mib)
	m.checkLedger(t, 0, 0)
	m.checkLedger(t, 1, 2064*mib)
}

func TestADriverThatRefusesCostsNoQuota(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64<<30) // more than the card has
	c := m.client(t, 0)
	c.want(t, outOfMemory, "alloc 0 %d", uint64(32)<<30)
	c.want(t, outOfMemory, "managed 0 %d", uint64(32)<<30)
	c.want(t, outOfMemory, "async 0 %d", uint64(32)<<30)
	c.want(t, outOfMemory, "create 0 %d 1 0", uint64(32)<<30)
	c.want(t, invalidValue, "alloc 0 0")
	c.want(t, invalidValue, "create 0 4097 1 0")
	s.checkCharged(t, 0)
}

func TestFreesOfUnknownPointersReachTheDriver(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 8*mib)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 4*mib)
	c.want(t, success, "free-pointer 0")
	c.want(t, invalidValue, "free-pointer 4660")
	c.want(t, success, "free 0")
	c.want(t, invalidValue, "free 0")
	s.checkCharged(t, 0)
}

func TestSizesThatOverflowAreRefused(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 8*mib)
	c := m.client(t, 0)
	for _, bytes := range []uint64{1 << 62, 1<<64 - 1, 1<<64 - 1<<20, 1 << 42} {
		c.want(t, outOfMemory, "alloc 0 %d", bytes)
		c.want(t, outOfMemory, "pitch 0 %d %d", bytes, bytes)
	}
	s.checkCharged(t, 0)
}

func TestTheEndOfAContextGivesQuotaBack(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	c.want(t, success, "alloc 0 %d", 8*mib) // in the primary context
	c.want(t, success, "context 0 0")
	c.want(t, success, "alloc 1 %d", 16*mib)
	c.want(t, success, "alloc 2 512")
	c.want(t, success, "alloc 3 512")
	s.checkCharged(t, 26*mib)
	c.want(t, success, "context-destroy 0")
	s.checkCharged(t, 8*mib)
	c.want(t, success, "reset 0")
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}

// The last block of a shard that became empty stays in the library's table.
func TestABlockThatStaysWhenEmptyIsNotCharged(t *testing.T) {
	m := newMachine(t, 2)
	first, second := m.newShare(t, 0, "one", 1024*mib), m.newShare(t, 1, "two", 1024*mib)
	c := m.client(t, 0)
	const blocks = 400
	fill := func(on share, card int) {
		t.Helper()
		c.want(t, fmt.Sprintf("%d 0", blocks), "fill 0 %d %d", mib, blocks)
		on.checkCharged(t, m.ledger(t, card).Used)
	}
	free := func(on share, card int) {
		t.Helper()
		for i := range blocks {
			c.want(t, success, "free %d", i)
		}
		on.checkCharged(t, 0)
		m.checkLedger(t, card, 0)
	}
	fill(first, 0)
	free(first, 0)
	c.want(t, success, "device 1") // the same addresses, of the other GPU
	fill(second, 1)
	first.checkCharged(t, 0)
	free(second, 1)
	c.want(t, success, "device 0")
	fill(first, 0)
	c.want(t, success, "reset 0") // with the blocks that had stayed
	first.checkCharged(t, 0)
	c.want(t, success, "device 0")
	fill(first, 0)
	free(first, 0)
	c.want(t, success, "reset 0") // with all of them empty
	first.checkCharged(t, 0)
}

func TestAHundredThousandAllocationsAreAllFound(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 512*mib)
	c := m.client(t, 0)
	c.want(t, "100000 0", "fill 0 4096 100000")
	used := m.ledger(t, 0).Used
	s.checkCharged(t, used)
	for i := 0; i < 100000; i += 7 {
		c.want(t, success, "free %d", i)
	}
	s.checkCharged(t, m.ledger(t, 0).Used)
	c.want(t, success, "reset 0")
	s.checkCharged(t, 0)
}

func TestErrnoIsTheHosts(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 4*mib)
	c := m.client(t, 0)
	c.want(t, "0 77", "errno 0 %d", 4*mib)
	c.want(t, "2 77", "errno 1 %d", 4*mib) // the slow path
	c.want(t, success, "free 0")
}
