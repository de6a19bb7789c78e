package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestEnvironmentSetsWhatTheCommandLineDoesNot(t *testing.T) {
	t.Setenv("NODE_NAME", "from-environment")
	t.Setenv("CDI_DIR", "/from/environment")
	t.Setenv("KUBECONFIG", "/somebody/else's")
	var f flags
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.add(fs)
	if err := fs.Parse([]string{"--cdi-dir=/from/flag"}); err != nil {
		t.Fatal(err)
	}
	if err := fromEnvironment(fs); err != nil {
		t.Fatal(err)
	}
	if f.nodeName != "from-environment" || f.cdiDir != "/from/flag" || f.kubeconfig != "" {
		t.Errorf("node name %q, CDI directory %q, kubeconfig %q", f.nodeName, f.cdiDir, f.kubeconfig)
	}
}

func TestBadFlagsAreRefusedByName(t *testing.T) {
	for args, wantErr := range map[string]string{
		"":                                  "--node-name is required",
		"--node-name=n --run-dir=shares":    `--run-dir is "shares": want an absolute path`,
		"--node-name=n":                     "",
		"--node-name=n --pod-uid=../../etc": `--pod-uid is "../../etc": want the UID of a pod`,
		"--node-name=n --pod-uid=7f2a4c1e-9d1b-4c5e-8a3f-0123456789ab":                                "",
		"--node-name=n --tracing-endpoint=127.0.0.1:4317":                                             "",
		"--node-name=n --tracing-endpoint=http://collector:4317":                                      "--tracing-endpoint wants the host:port of an OTLP collector",
		"--node-name=n --tracing-endpoint=collector:4317 --tracing-sampling-rate-per-million=1000001": "--tracing-sampling-rate-per-million 0 to 1000000: tracing.samplingRatePerMillion",
		"--node-name=n --context-reserve=0":                                                           "",
		"--node-name=n --context-reserve=16Gi":                                                        "",
		"--node-name=n --fatal-taint=None":                                                            "",
		"--node-name=n --fatal-taint=Evict":                                                           `--fatal-taint is "Evict": want NoExecute, NoSchedule or None`,
		"--node-name=n --degraded-taint=":                                                             `--degraded-taint is "": want`,
		"--node-name=n --context-reserve=16385Mi":                                                     "--context-reserve is 16385Mi: want 0 to 16Gi",
		"--node-name=n --context-reserve=-1":                                                          "--context-reserve is -1: want 0 to 16Gi",
		"--node-name=n --context-reserve=9999999Ei":                                                   "want 0 to 16Gi",
		"--node-name=n --context-reserve=half":                                                        `--context-reserve is "half": want an amount of memory such as 512Mi`,
		"--node-name=n --context-reserve=":                                                            `--context-reserve is "": want an amount`,
	} {
		var f flags
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.add(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		err := f.validate()
		if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("%q: got error %v, want %q", args, err, wantErr)
		}
	}
}

func TestContextReserveIsRoundedUp(t *testing.T) {
	for reserve, want := range map[string]uint32{"0": 0, "1": 1, "1m": 1, "1Mi": 1, "1048577": 2, "300M": 287, "512Mi": 512, "0.5Gi": 512, "16Gi": 16384} {
		f := flags{contextReserve: reserve}
		if got, err := f.contextMiB(); err != nil || got != want {
			t.Errorf("%s is %d MiB, %v, want %d", reserve, got, err, want)
		}
	}
}
