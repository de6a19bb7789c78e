package preload_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var fuzzTime = flag.String("fuzzseconds", "5", "for how many seconds each fuzz target of the library runs")

// A short run; `make -C cdi/preload fuzz` is a long one. Without clang the inputs
// are changed at random and not by what they reach.
func TestFuzzersFindNothing(t *testing.T) {
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"quota", "region"} {
		t.Run(target, func(t *testing.T) {
			dir := filepath.Join(built.dir, "fuzz")
			cmd := exec.Command("make", "-s", "-C", ".", "fuzz-"+target, "OUT="+dir, "FUZZTIME="+*fuzzTime)
			if output, err := cmd.CombinedOutput(); err != nil {
				last, _ := os.ReadFile(filepath.Join(dir, "last-input")) // libFuzzer's is in its output
				t.Errorf("%v\n%s\nthe last input, after its size: %q", err, tail(output, 8000), last)
			}
		})
	}
}

func tail(output []byte, n int) []byte {
	return output[max(0, len(output)-n):]
}
