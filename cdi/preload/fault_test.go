package preload_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"aliquot.dev/aliquot/e2e/simdriver"
)

const refused = 719 // some result that no call gives here by itself

// failure is a call of the driver that fails: the n-th of the function that the
// client's command leads to.
type failure struct {
	function string
	n        int
	command  string
	first    string // commands before it, if any, divided by semicolons
}

// Stream-ordered allocation is always from a pool that the library names, and an
// array is made after a twin of it.
var failedBegins = []failure{
	{"cuMemAlloc_v2", 1, "alloc 0 4194304", ""},
	{"cuMemAlloc_v2", 1, "alloc 0 512", ""},
	{"cuMemAlloc_v2", 2, "alloc 1 512", "alloc 0 512"},
	{"cuMemAllocManaged", 1, "managed 0 4194304", ""},
	{"cuMemAllocPitch_v2", 1, "pitch 0 1000 4096", ""},
	{"cuMemAllocFromPoolAsync", 1, "async 0 4194304", ""},
	{"cuMemAllocFromPoolAsync", 1, "from-pool 0 4194304 0", "pool 0 0"},
	{"cuMemPoolCreate", 1, "pool 0 0", ""},
	{"cuMemCreate", 1, "create 0 4194304 1 0", ""},
	{"cuMemMap", 1, "map 1 0 0 4194304", "create 0 4194304 1 0;reserve 1 4194304"},
	{"cuMemRetainAllocationHandle", 1, "retain 2 1 0", "create 0 4194304 1 0;reserve 1 4194304;map 1 0 0 4194304"},
	{"cuMemMapArrayAsync", 1, "tile 1 0 5", "create 0 4194304 1 0;sparse 1 10000 10000 0"},
	{"cuArrayCreate_v2", 1, "array 0 1000 1000", ""},
	{"cuArrayCreate_v2", 1, "array 0 100 100", ""},
	{"cuArray3DCreate_v2", 2, "array3d 0 256 256 33", ""},
	{"cuMipmappedArrayCreate", 2, "mipmaps 0 1024 1024 11", ""},
	{"cuDevicePrimaryCtxRetain", 1, "primary 0", "reset 0"},
	{"cuDevicePrimaryCtxRetain", 2, "primary 0", "primary 0"},
	{"cuCtxCreate", 1, "context-v1 0 0", "reset 0"},
	{"cuCtxCreate_v2", 1, "context 0 0", "reset 0"},
	{"cuCtxCreate_v3", 1, "context-v3 0 0", "reset 0"},
	{"cuCtxCreate_v4", 1, "context-v4 0 0", "reset 0"},
	{"cuGreenCtxCreate", 1, "green 0 0", "reset 0"},
	{"cuGreenCtxCreate", 1, "green 0 0", ""},
	{"cuCtxSetLimit", 1, "limit 2 67108864", ""},
	{"cuGraphInstantiate_v2", 1, "instantiate 0 0 0", "capture 0 4194304 1"},
	{"cuGraphInstantiateWithFlags", 1, "instantiate 0 0 1", "capture 0 4194304 1"},
	{"cuGraphInstantiateWithParams", 1, "instantiate 0 0 3", "capture 0 4194304 1"},
	{"cuGraphUpload", 1, "upload 0", "capture 0 4194304 1;instantiate 0 0 1"},
	{"cuGraphLaunch", 1, "launch 0", "capture 0 4194304 1;instantiate 0 0 1"},
	{"cuMemImportFromShareableHandle", 1, "import 0 0 0", ""},
	{"cuMemPoolImportFromShareableHandle", 1, "pool-import 0 0 0", ""},
}

// Each command ends the first of what was begun. An array came after its twin.
var failedEnds = []failure{
	{"cuMemFree_v2", 1, "free 0", "alloc 0 4194304"},
	{"cuMemFree_v2", 1, "free 0", "alloc 0 512"},
	{"cuMemFreeAsync", 1, "free-async 0", "async 0 4194304"},
	{"cuMemRelease", 1, "release 0", "create 0 4194304 1 0"},
	{"cuMemUnmap", 1, "unmap 1 0 4194304", "create 0 4194304 1 0;reserve 1 4194304;map 1 0 0 4194304;release 0"},
	{"cuArrayDestroy", 2, "array-destroy 0", "array 0 1000 1000"},
	{"cuArrayDestroy", 2, "array-destroy 0", "array 0 100 100"},
	{"cuArrayDestroy", 2, "array-destroy 0", "array3d 0 256 256 33"},
	{"cuMipmappedArrayDestroy", 2, "mipmaps-destroy 0", "mipmaps 0 1024 1024 11"},
	{"cuMemMapArrayAsync", 2, "tile-unmap 1 0 5", "create 0 4194304 1 0;sparse 1 10000 10000 0;tile 1 0 5;release 0"},
	{"cuMemPoolDestroy", 1, "pool-destroy 0", "pool 0 0;threshold 0 8388608;from-pool 0 4194304 0"},
	{"cuGraphExecDestroy", 1, "exec-destroy 0", "capture 0 4194304 1;instantiate 0 0 3"},
	{"cuDeviceGraphMemTrim", 1, "graph-trim 0", "capture 0 4194304 1;instantiate 0 0 3"},
	{"cuCtxDestroy", 1, "context-destroy-v1 0", "reset 0;context 0 0;alloc 0 4194304"},
	{"cuCtxDestroy_v2", 1, "context-destroy 0", "reset 0;context 0 0;alloc 0 4194304"},
	{"cuGreenCtxDestroy", 1, "green-destroy 0", "reset 0;green 0 0"},
	{"cuDevicePrimaryCtxRelease_v2", 1, "release-primary 0", "alloc 0 4194304"},
	{"cuDevicePrimaryCtxReset_v2", 1, "reset 0", "alloc 0 4194304"},
}

// withFailure starts a program, which has a context that costs 100 MiB, and has
// it do what comes first.
func (f failure) withFailure(t *testing.T) (*machine, share, *client) {
	t.Helper()
	m, s := costlyMachine(t, 256*mib)
	if err := m.root.Fault(simdriver.FailNthCall(f.function, f.n, refused)); err != nil {
		t.Fatal(err)
	}
	if f.function == "cuDevicePrimaryCtxRetain" { // not the client's own
		if err := m.root.ClearFaults(); err != nil {
			t.Fatal(err)
		}
	}
	c := m.client(t, 0)
	if f.function == "cuDevicePrimaryCtxRetain" {
		if err := m.root.Fault(simdriver.FailNthCall(f.function, f.n, refused)); err != nil {
			t.Fatal(err)
		}
	}
	for command := range strings.SplitSeq(f.first, ";") {
		if command != "" {
			c.want(t, success, "%s", command)
		}
	}
	return m, s, c
}

func TestACallThatTheDriverFailsCostsNoQuota(t *testing.T) {
	for _, f := range failedBegins {
		t.Run(f.function+" "+f.command, func(t *testing.T) {
			t.Parallel()
			m, s, c := f.withFailure(t)
			before := m.ledger(t, 0).Used
			s.checkCharged(t, before)
			c.want(t, "719", "%s", f.command)
			m.checkLedger(t, 0, before)
			s.checkCharged(t, before)
			if strings.Contains(f.function, "Import") {
				return
			}
			c.want(t, success, "%s", f.command) // only that one call failed
			s.checkCharged(t, m.ledger(t, 0).Used)
			c.want(t, success, "reset 0")
			c.exit(t)
		})
	}
}

func TestAnEndThatTheDriverFailsGivesNothingBack(t *testing.T) {
	for _, f := range failedEnds {
		t.Run(f.function+" "+f.command, func(t *testing.T) {
			t.Parallel()
			m, s, c := f.withFailure(t)
			before := m.ledger(t, 0).Used
			s.checkCharged(t, before)
			c.want(t, "719", "%s", f.command)
			m.checkLedger(t, 0, before)
			s.checkCharged(t, before)
			c.want(t, success, "%s", f.command)
			s.checkCharged(t, m.ledger(t, 0).Used)
			if after := m.ledger(t, 0).Used; after > before {
				t.Errorf("after the end %d MiB are held, before it %d", after>>20, before>>20)
			}
		})
	}
}

// What is wrapped and takes or gives memory fails in a test.
func TestEveryFunctionOfMemoryFailsOnce(t *testing.T) {
	ofMemory := regexp.MustCompile(`^cu(Mem|Array|Mipmapped|Ctx|DevicePrimary|Green|Graph|DeviceGraph).*(_v\d)?$`)
	// These change no charge, or differ from another in the meaning of stream 0
	// or in being older than this driver.
	others := regexp.MustCompile(`^(cuMemGetInfo.*|cuMemPoolTrimTo|cuMemPoolSetAttribute|cuMemAllocAsync|.*_ptsz` +
		`|cuMemAlloc|cuMemAllocPitch|cuMemFree|cuArrayCreate|cuArray3DCreate|cuGraphInstantiate|cuDevicePrimaryCtxRelease|cuDevicePrimaryCtxReset)$`)
	for _, name := range strings.Fields(readFile(t, "testdata/exports.golden")) {
		is := func(f failure) bool { return f.function == name }
		if ofMemory.MatchString(name) && !others.MatchString(name) &&
			!slices.ContainsFunc(failedBegins, is) && !slices.ContainsFunc(failedEnds, is) {
			t.Errorf("no test has %s fail", name)
		}
	}
}

func TestArraysAreReckonedWhereTheDriverDoesNotTellTheirSize(t *testing.T) {
	for _, function := range []string{"cuArrayGetMemoryRequirements", "cuArray3DCreate_v2"} {
		m := newMachine(t, 1)
		s := m.newShare(t, 0, "one", 256*mib)
		if err := m.root.Fault(simdriver.FailCall(function, refused)); err != nil {
			t.Fatal(err)
		}
		c := m.client(t, 0)
		c.want(t, success, "array 0 1000 1000") // rows of 4096 bytes
		s.checkCharged(t, 4*mib)
		c.want(t, success, "array 1 1048 2048") // of 4608, though 4224 would do
		s.checkCharged(t, (4+10)*mib)
		c.want(t, success, "array 2 100 100")
		s.checkCharged(t, (4+10+2)*mib)
		if held := m.ledger(t, 0).Used; held > 16*mib {
			t.Errorf("the hardware has given out %d MiB, more than was charged", held>>20)
		}
		for i := range 3 {
			c.want(t, success, "array-destroy %d", i)
		}
		s.checkCharged(t, 0)
	}
}

func TestPointersThatOnlyCuGetProcAddressGivesAreExchanged(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	if err := m.root.Fault(simdriver.OwnPointers); err != nil {
		t.Fatal(err)
	}
	c := m.startClient(t, compile(t, "client"), "procaddr")
	c.want(t, success, "init")
	c.want(t, success, "device 0")
	for _, call := range []string{"alloc 0 %d", "managed 0 %d", "async 0 %d", "create 0 %d 1 0"} {
		c.want(t, outOfMemory, call, 18*mib)
	}
	c.want(t, outOfMemory, "array 0 4000 4000")
	c.want(t, success, "alloc 0 %d", 16*mib)
	c.want(t, figures(0, 16*mib), "info")
	c.want(t, success, "free 0")
	s.checkCharged(t, 0)
	c.exit(t)
	if said := c.stderr.String(); said != "" {
		t.Errorf("stderr is %q", said)
	}
}
