package preload_test

import "testing"

func TestPoolsAreChargedWhatTheyReserve(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	c := m.client(t, 0)
	c.want(t, success, "async 0 %d", 12*mib)
	c.want(t, success, "async 1 512") // a block of its own in the pool
	s.checkCharged(t, 14*mib)
	c.want(t, success, "async 2 512")
	s.checkCharged(t, 14*mib)
	c.want(t, success, "free-async 0")
	// Freed in stream order: reserved until a synchronisation.
	s.checkCharged(t, 14*mib)
	m.checkLedger(t, 0, 14*mib)
	c.want(t, success, "sync")
	c.want(t, figures(30*mib, 32*mib), "info")
	s.checkCharged(t, 2*mib)
	m.checkLedger(t, 0, 2*mib)
	c.want(t, success, "free 1") // cuMemFree of such a pointer
	c.want(t, success, "free-async 2")
	c.want(t, success, "sync")
	c.want(t, figures(32*mib, 32*mib), "info")
	m.checkLedger(t, 0, 0)
}

func TestWhatAPoolHoldsUnusedIsGivenBackWhenMemoryIsShort(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	c := m.client(t, 0)
	for i, again := range []string{"alloc 1 %d", "managed 1 %d", "async 1 %d", "create 1 %d 1 0", "from-pool 1 %d 1"} {
		if i == 0 {
			c.want(t, success, "pool 1 0")
			c.want(t, success, "default-pool 0 0")
			c.want(t, success, "threshold 0 %d", uint64(1)<<40)
		}
		c.want(t, success, "async 0 %d", 24*mib)
		c.want(t, success, "free-async 0")
		c.want(t, success, "sync")
		s.checkCharged(t, 24*mib)
		c.want(t, success, again, 32*mib)
		s.checkCharged(t, 32*mib)
		m.checkLedger(t, 0, 32*mib)
		c.want(t, outOfMemory, "alloc 2 512")
		if i == 3 {
			c.want(t, success, "release 1")
		} else {
			c.want(t, success, "free 1")
		}
		c.want(t, success, "trim 1 0")
		c.want(t, success, "trim 0 0")
		s.checkCharged(t, 0)
	}
}

func TestADestroyedPoolIsChargedUntilItsLastPointerIsFreed(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	c := m.client(t, 0)
	c.want(t, success, "pool 3 0")
	c.want(t, success, "from-pool 0 %d 3", 8*mib)
	c.want(t, success, "from-pool 1 %d 3", 8*mib)
	c.want(t, success, "pool-destroy 3")
	s.checkCharged(t, 16*mib)
	c.want(t, success, "free-async 0")
	c.want(t, outOfMemory, "alloc 2 %d", 18*mib)
	c.want(t, success, "free-async 1")
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
	// The driver may give the next pool the same handle.
	c.want(t, success, "pool 3 0")
	c.want(t, success, "from-pool 0 %d 3", 8*mib)
	c.want(t, success, "free-async 0")
	c.want(t, success, "pool-destroy 3")
	s.checkCharged(t, 0)
}

func TestAPoolIsChargedToItsOwnGPU(t *testing.T) {
	m := newMachine(t, 2)
	zero := m.newShare(t, 0, "one", 32*mib)
	one := m.newShare(t, 1, "one", 8*mib)
	c := m.client(t, 0)
	c.want(t, success, "pool 1 1")
	c.want(t, outOfMemory, "from-pool 0 %d 1", 10*mib)
	c.want(t, success, "from-pool 0 %d 1", 8*mib)
	one.checkCharged(t, 8*mib)
	zero.checkCharged(t, 0)
	// A stream of another device: its device's pool, not the current one's.
	c.want(t, success, "free 0")
	c.want(t, success, "trim 1 0")
	c.want(t, success, "device 1")
	c.want(t, success, "stream 1")
	c.want(t, success, "device 0")
	c.want(t, outOfMemory, "async 0 %d 1", 10*mib)
	c.want(t, success, "async 0 %d 1", 8*mib)
	one.checkCharged(t, 8*mib)
	zero.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
	m.checkLedger(t, 1, 8*mib)
}

func TestTheDevicesCurrentPoolIsCharged(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 32*mib)
	c := m.client(t, 0)
	c.want(t, success, "pool 1 0")
	c.want(t, success, "threshold 1 %d", uint64(1)<<40)
	c.want(t, success, "set-pool 0 1")
	c.want(t, success, "async 0 %d", 16*mib)
	c.want(t, success, "free-async 0")
	s.checkCharged(t, 16*mib)
	c.want(t, success, "trim 1 0")
	s.checkCharged(t, 0)
}
