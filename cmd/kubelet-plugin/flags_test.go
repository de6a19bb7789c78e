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
		"":                               "--node-name is required",
		"--node-name=n --run-dir=shares": `--run-dir is "shares": want an absolute path`,
		"--node-name=n":                  "",
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
