package preload_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nextLibraries makes three libraries with the same symbol.
func nextLibraries(t testing.TB, compiler string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, value := range map[string]string{"first": "11", "second": "22", "third": "33"} {
		path := filepath.Join(dir, "lib"+name+".so")
		if err := run(compiler, "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-DVALUE="+value, "-DNAME="+name+"_next",
			"-Wl,-soname,lib"+name+".so", "-o", path, "testdata/next.c"); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"-Wl,--no-as-needed", "-L" + dir, "-lfirst", "-lsecond", "-lthird", "-Wl,-rpath," + dir}
}

const ours, theirs = "libaliquot.so", "libcuda.so.1"

func TestLookupByEveryPath(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 8*mib)
	cmd := m.command(t, compile(t, "lookup", nextLibraries(t, "gcc")...))
	output, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		path, answer, _ := strings.Cut(line, ": ")
		got[path] = answer
	}
	want := map[string]string{
		// Without the driver there is no cuInit, though we export one.
		"before the driver cuInit": "none - error",
		// A caller is known by its return address.
		"next of first 22, of second 33": "",
	}
	for _, name := range []string{"cuMemAlloc_v2", "cuMemAllocAsync_ptsz", "cuGetProcAddress_v2"} {
		for _, path := range []string{"handle", "default", "next", "next again", "program", "versioned"} {
			want[path+" "+name] = ours + " " + name
		}
		want["libc "+name] = "none - error"
	}
	// What the driver lacks is not there, whatever we export; what we do not
	// wrap is the driver's, or libc's.
	for _, name := range []string{"cuMemAlloc", "cuNoSuchThing", "cudaMalloc", "curl_easy_init"} {
		for _, path := range []string{"handle", "default", "next", "next again", "program", "libc", "versioned"} {
			want[path+" "+name] = "none - error"
		}
	}
	for _, path := range []string{"default", "next", "next again", "program", "libc"} {
		want[path+" cuCtxSynchronize"] = "none - error" // loaded RTLD_LOCAL
		want[path+" qsort"] = "libc.so.6 qsort"
	}
	want["handle cuCtxSynchronize"] = theirs + " cuCtxSynchronize"
	want["versioned cuCtxSynchronize"] = "none - error" // it has no versions
	want["handle qsort"] = "libc.so.6 qsort"
	want["versioned qsort"] = "none - error"
	addProcAddress(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lookups differ (-want +got):\n%s", diff)
	}
}

func addProcAddress(want map[string]string) {
	both := func(version, flags, name, answer string) {
		want["procaddr_v2 "+version+"/"+flags+" 0 0 "+name] = answer
		want["procaddr "+version+"/"+flags+" 0 "+name] = answer
	}
	both("11030", "0", "cuMemAlloc", ours+" cuMemAlloc_v2")
	both("12000", "1", "cuMemAlloc", ours+" cuMemAlloc_v2")
	both("13000", "2", "cuMemAlloc", ours+" cuMemAlloc_v2")
	both("11020", "0", "cuMemAllocAsync", ours+" cuMemAllocAsync")
	both("12000", "2", "cuMemAllocAsync", ours+" cuMemAllocAsync_ptsz")
	both("12000", "0", "cuCtxGetDevice", theirs+" cuCtxGetDevice")
	both("13000", "0", "cuCtxGetDevice", theirs+" cuCtxGetDevice_v2")
	both("13000", "0", "cuCtxSynchronize", theirs+" cuCtxSynchronize_v2")
	both("11030", "0", "cuGetProcAddress", ours+" cuGetProcAddress")
	both("12000", "0", "cuGetProcAddress", ours+" cuGetProcAddress_v2")
	// The status is the driver's.
	want["procaddr_v2 11010/0 0 2 cuMemAllocAsync"] = "none -"
	want["procaddr 11010/0 500 cuMemAllocAsync"] = "none -"
	want["procaddr_v2 13000/0 0 1 cuNoSuchThing"] = "none -"
	want["procaddr 13000/0 500 cuNoSuchThing"] = "none -"
}

func TestLimitIsHeldHoweverTheProgramFindsTheDriver(t *testing.T) {
	m := newMachine(t, 1)
	s := m.newShare(t, 0, "one", 16*mib)
	tests := []struct {
		how   string
		flags []string
	}{
		{how: "dlsym"},
		{how: "procaddr"},
		{how: "linked", flags: []string{"-DLINKED", "-L" + m.root.LibraryDir(), "-lcuda"}},
	}
	for _, test := range tests {
		t.Run(test.how, func(t *testing.T) {
			c := m.startClient(t, compile(t, "client", test.flags...), test.how)
			c.want(t, success, "init")
			c.want(t, success, "device 0")
			c.want(t, success, "alloc 0 %d", 16*mib)
			c.want(t, outOfMemory, "alloc 1 1")
			s.checkCharged(t, 16*mib)
			c.want(t, figures(0, 16*mib), "info")
			c.want(t, success, "free 0")
			c.exit(t)
		})
	}
}

func TestEveryExportIsFoundByItsName(t *testing.T) {
	// The table of names is searched by halving, so its order matters.
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 16*mib)
	for _, name := range strings.Fields(readFile(t, "testdata/exports.golden")) {
		if name == "dlsym" || name == "dlvsym" {
			continue
		}
		cmd := m.command(t, compile(t, "find"), name)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
	}
}

func TestVersionsThatTheLibraryDoesNotKnowAreNamed(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 16*mib)
	dir := t.TempDir()
	if err := run("gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-o", filepath.Join(dir, "libcuda.so.1"),
		"testdata/newer.c"); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd := m.command(t, compile(t, "find"), "cuInit")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	want := "aliquot: not limited, being newer than this library: cuMemAllocAsync_v2_ptsz cuMemAlloc_v3 cuMemCreate\n"
	if diff := cmp.Diff(want, stderr.String()); diff != "" {
		t.Errorf("stderr differs (-want +got):\n%s", diff)
	}
}

func TestAProgramWithoutCUDAIsUntouched(t *testing.T) {
	m := newMachine(t, 1)
	// Were it read, this would be complained about.
	m.newShare(t, 0, "one", 16*mib).write(t, "quota", nil)
	outputs := map[bool]string{}
	for _, preload := range []bool{false, true} {
		cmd := exec.Command(compile(t, "plain"))
		cmd.Dir = m.dir
		cmd.Env = m.environ(preload)
		output, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		outputs[preload] = string(output)
	}
	if diff := cmp.Diff(outputs[false], outputs[true]); diff != "" {
		t.Errorf("the library changed its host (-without +with):\n%s", diff)
	}
}
