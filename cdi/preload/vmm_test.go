package preload_test

import "testing"

func TestPhysicalMemoryIsChargedUntilItsLastHolderIsGone(t *testing.T) {
	const size = 4 * mib
	tests := []struct {
		name string
		// Each step is a command and whether the memory is held after it.
		steps []struct {
			command string
			held    bool
		}
	}{
		{"handle only", []struct {
			command string
			held    bool
		}{{"release 0", false}}},
		{"released while mapped", []struct {
			command string
			held    bool
		}{{"map 0 0 0 4194304", true}, {"release 0", true}, {"unmap 0 0 4194304", false}}},
		{"unmapped while held", []struct {
			command string
			held    bool
		}{{"map 0 0 0 4194304", true}, {"unmap 0 0 4194304", true}, {"release 0", false}}},
		{"mapped twice", []struct {
			command string
			held    bool
		}{{"map 0 0 0 4194304", true}, {"map 0 0 4194304 4194304", true}, {"release 0", true},
			{"unmap 0 0 4194304", true}, {"unmap 0 4194304 4194304", false}}},
		{"two mappings unmapped at once", []struct {
			command string
			held    bool
		}{{"map 0 0 0 4194304", true}, {"map 0 0 4194304 4194304", true}, {"release 0", true},
			{"unmap 0 0 8388608", false}}},
		{"retained", []struct {
			command string
			held    bool
		}{{"map 0 0 0 4194304", true}, {"retain 1 0 1048576", true}, {"release 0", true},
			{"unmap 0 0 4194304", true}, {"release 1", false}}},
		{"retained after release", []struct {
			command string
			held    bool
		}{{"map 0 0 0 4194304", true}, {"release 0", true}, {"retain 1 0 2097153", true},
			{"unmap 0 0 4194304", true}, {"release 1", false}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, 1)
			s := m.newShare(t, 0, "one", 64*mib)
			c := m.client(t, 0)
			c.want(t, success, "create 0 %d 1 0", size)
			c.want(t, success, "reserve 0 %d", 2*size)
			for _, step := range test.steps {
				c.want(t, success, "%s", step.command)
				want := uint64(0)
				if step.held {
					want = size
				}
				s.checkCharged(t, want)
				m.checkLedger(t, 0, want)
			}
		})
	}
}

func TestHandlesThatAreReusedAreChargedAnew(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	c.want(t, success, "reserve 0 %d", 64*mib)
	for i := range 10 { // created, mapped and released: the handle is free again
		c.want(t, success, "create 0 %d 1 0", 4*mib)
		c.want(t, success, "map 0 0 %d %d", i*4*mib, 4*mib)
		c.want(t, success, "release 0")
	}
	s.checkCharged(t, 40*mib)
	m.checkLedger(t, 0, 40*mib)
	c.want(t, outOfMemory, "create 0 %d 1 0", 26*mib)
	c.want(t, success, "unmap 0 0 %d", 40*mib)
	s.checkCharged(t, 0)
	m.checkLedger(t, 0, 0)
}

func TestHostMemoryHandlesAreNotCharged(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 4*mib)
	c := m.client(t, 0)
	c.want(t, success, "create 0 %d 2 0", 64*mib)
	c.want(t, success, "create 1 %d 3 0", 64*mib)
	c.want(t, success, "reserve 0 %d", 64*mib)
	c.want(t, success, "map 0 0 0 %d", 64*mib)
	c.want(t, success, "release 0")
	c.want(t, success, "unmap 0 0 %d", 64*mib)
	c.want(t, success, "release 1")
	s.checkCharged(t, 0)
}

func TestRefusedMappingsChangeNothing(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 64*mib)
	c := m.client(t, 0)
	c.want(t, success, "create 0 %d 1 0", 4*mib)
	c.want(t, success, "reserve 0 %d", 8*mib)
	c.want(t, invalidValue, "map 0 0 0 %d", 8*mib) // more than the handle has
	c.want(t, invalidValue, "unmap 0 0 %d", 4*mib)
	c.want(t, success, "map 0 0 0 %d", 4*mib)
	c.want(t, invalidValue, "map 0 0 0 %d", 4*mib) // mapped already
	c.want(t, invalidValue, "unmap 0 0 %d", 2*mib) // part of a mapping
	c.want(t, success, "release 0")
	c.want(t, invalidValue, "release 0")
	s.checkCharged(t, 4*mib)
	c.want(t, success, "unmap 0 0 %d", 4*mib)
	s.checkCharged(t, 0)
}
