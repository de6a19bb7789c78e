package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigRefusesWhatCannotWork(t *testing.T) {
	tests := map[string]struct {
		nodes []Node
		want  string
	}{
		"name that is no label": {[]Node{{Name: "Node_1"}}, "DNS label"},
		"two of a name":         {[]Node{{Name: "a"}, {Name: "a"}}, "two nodes are named a"},
		"relative target":       {[]Node{{Name: "a", Mounts: []Mount{{Source: "/", Target: "x"}}}}, "not absolute"},
		"missing source":        {[]Node{{Name: "a", Mounts: []Mount{{Source: "/none", Target: "/x"}}}}, "no such file"},
		"relative container mount": {
			[]Node{{Name: "a", ContainerMounts: []Mount{{Source: "x", Target: "/x"}}}}, "not absolute"},
		"too many": {make([]Node, maxNodes+1), "at most"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config := Config{Nodes: test.nodes}
			if err := config.complete(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one about %q", err, test.want)
			}
		})
	}
}

func TestConfigRefusesADirectoryInUse(t *testing.T) {
	config := Config{Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(config.Dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := config.makeDir(); err == nil {
		t.Error("a directory with files in it was taken")
	}
}

func TestAddMountsKeepsTheSpec(t *testing.T) {
	const spec = `{"mounts":[{"destination":"/proc"}],"process":{"rlimits":[{"hard":18446744073709551615}]}}`
	out, err := addMounts([]byte(spec), []Mount{{Source: "/a", Target: "/b", ReadOnly: true}})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Mounts []struct {
			Destination, Source string
			Options             []string
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Mounts) != 2 || got.Mounts[0].Destination != "/proc" || got.Mounts[1].Source != "/a" || got.Mounts[1].Options[1] != "ro" {
		t.Errorf("mounts %+v", got.Mounts)
	}
	if !strings.Contains(out, "18446744073709551615") {
		t.Errorf("a large number changed: %s", out)
	}
}
