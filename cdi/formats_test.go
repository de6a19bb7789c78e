package cdi

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// formats has a folder for each version of a share's files, as containers that run have them mounted while the plugin is
// replaced. Those of earlier versions are never changed.
const formats = "testdata/formats"

// keptQuota is the share whose files are kept.
var keptQuota = Quota{GPU: gpu0, MemoryBytes: 20 * gi, CorePercent: 30, CorePolicy: "Burst", Priority: 1, ContextMiB: 300, CorePermille: 125}

const headerBytes = 64 // all that is not zero at first

// texts are a share's files, those that are binary by their first bytes and without what each boot has anew.
func texts(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for name, size := range map[string]int{quotaFile: 0, agentFile: agentSize, usageFile: usageSize} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if size == 0 {
			files[name] = string(content)
			continue
		}
		if len(content) != size || strings.Trim(string(content[headerBytes:]), "\x00") != "" {
			t.Fatalf("%s has %d bytes, or more than a header", name, len(content))
		}
		if name == usageFile {
			clear(content[24:40]) // the boot, and when it was made
		}
		files[name] = hex.Dump(content[:headerBytes])
	}
	return files
}

func golden(version, name string) string { return filepath.Join(formats, version, name+".golden") }

func TestFilesOfSharesAreWhatTheyWere(t *testing.T) {
	const newest = "1"
	dir := filepath.Join(t.TempDir(), "share")
	if err := writeShare(dir, keptQuota); err != nil {
		t.Fatal(err)
	}
	for name, got := range texts(t, dir) {
		path := golden(newest, name)
		if *update {
			write(t, path, got)
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-golden +written); a running container has the old one:\n%s", name, diff)
		}
	}
}

// A plugin that takes over reads and writes the files of shares that every earlier version made.
func TestFilesOfSharesOfAllVersionsAreUsed(t *testing.T) {
	versions, err := os.ReadDir(formats)
	if err != nil || len(versions) == 0 {
		t.Fatalf("there are no golden files: %v", err)
	}
	for _, version := range versions {
		dir := filepath.Join(t.TempDir(), "share")
		if err := writeShare(dir, keptQuota); err != nil {
			t.Fatal(err)
		}
		for name, size := range map[string]int{agentFile: agentSize, usageFile: usageSize} {
			text, err := os.ReadFile(golden(version.Name(), name))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, name), string(append(undump(t, string(text)), make([]byte, size-headerBytes)...)))
		}
		agent := openAgent(t, dir)
		if got := agent.ContextMiB(); got != keptQuota.ContextMiB {
			t.Errorf("version %s: a context is charged %d MiB", version.Name(), got)
		}
		if err := agent.Write(somePage()); err != nil {
			t.Errorf("version %s: %v", version.Name(), err)
		}
		usage, err := OpenUsage(dir)
		if err != nil {
			t.Fatal(err)
		}
		if region, err := usage.Read(); err != nil || len(region.Slots) > 0 {
			t.Errorf("version %s: %+v, %v", version.Name(), region, err)
		}
		_ = usage.Close()
	}
}

// undump is the reverse of hex.Dump.
func undump(t *testing.T, text string) (content []byte) {
	t.Helper()
	for line := range strings.Lines(text) {
		fields := strings.Fields(line[:strings.IndexByte(line, '|')])
		bytes, err := hex.DecodeString(strings.Join(fields[1:], ""))
		if err != nil {
			t.Fatal(err)
		}
		content = append(content, bytes...)
	}
	return content
}
