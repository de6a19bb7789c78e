package preload_test

import (
	"os"
	"os/exec"
	"testing"
)

// What each sanitizer is to see: the kinds of allocation, refusals, contexts,
// views, forks, garbage, random programs; and for threads what races in them.
var sanitized = map[string]string{
	"address,undefined": "^(TestLimitIsHeldExactlyByEachCall|TestSharesOfOneGPUAddUp|TestTheEndOfAContext.*|TestAForked.*|TestAProcessThatClosedOurDescriptor.*|" +
		"TestGarbage.*|TestViewIsTheShares|TestWithoutShortageNothingDiffers|TestAgentPageIsReadWhole|TestNobodyIsRefusedWhatFits)$",
	"thread": "^(TestNobodyIsRefusedWhatFits|TestAgentPageIsReadWhole|TestThreadsOfOneProcess.*)$",
}

// Runs a part of the tests in this folder with the library and the programs
// compiled so.
func TestSanitizersFindNothing(t *testing.T) {
	if *sanitizer != "" {
		t.Skip("this is such a run")
	}
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tests := range sanitized {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(self, "-test.run", tests, "-sanitizer", name, "-seeds", "4", "-test.timeout", "5m")
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, tail(output, 20000))
			}
		})
	}
}
