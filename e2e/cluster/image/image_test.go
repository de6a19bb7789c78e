package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// members reads a tar archive: name to content, or to "-> target" for a link.
func members(t *testing.T, content []byte) map[string]string {
	t.Helper()
	found := make(map[string]string)
	archive := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = string(body)
		if header.Typeflag == tar.TypeSymlink {
			found[header.Name] = "-> " + header.Linkname
		}
	}
}

func writeImage(t *testing.T, i Image) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := i.Write(path); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestWriteMakesAnImageWhoseReferencesResolve(t *testing.T) {
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "script"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("script", filepath.Join(source, "alias")); err != nil {
		t.Fatal(err)
	}
	tree := NewTree().Text("/etc/motd", "hello").Directory("/opt/tool", source).Folder("/var/empty", 0o700)
	archive := members(t, writeImage(t, Image{Name: "aliquot.test/tool:1", Root: tree, Entrypoint: []string{"/opt/tool/alias"}}))

	var index struct{ Manifests []descriptor }
	decode(t, archive["index.json"], &index)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != "aliquot.test/tool:1" {
		t.Errorf("image name %q", got)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, archive[blobPath(index.Manifests[0])], &manifest)
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, archive[blobPath(manifest.Config)], &config)
	if diff := cmp.Diff([]string{manifest.Layers[0].Digest}, config.RootFS.DiffIDs); diff != "" {
		t.Errorf("layers and diff ids differ:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/opt/tool/alias"}, config.Config.Entrypoint); diff != "" {
		t.Errorf("entrypoint:\n%s", diff)
	}
	want := map[string]string{
		"etc/": "", "etc/motd": "hello", "opt/": "", "opt/tool/": "", "opt/tool/script": "#!/bin/sh\n",
		"opt/tool/alias": "-> script", "var/": "", "var/empty/": "",
	}
	if diff := cmp.Diff(want, members(t, []byte(archive[blobPath(manifest.Layers[0])]))); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func decode(t *testing.T, document string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(document), into); err != nil {
		t.Fatalf("decode %q: %v", document, err)
	}
}

func TestWriteIsReproducible(t *testing.T) {
	build := func() []byte {
		return writeImage(t, Image{Name: "a:1", Root: NewTree().Text("/b", "1").Text("/a", "2")})
	}
	if !bytes.Equal(build(), build()) {
		t.Error("the same files made two different images")
	}
}

func TestTopLevelFoldersAreLinksIntoUsr(t *testing.T) {
	tree := NewTree().Text("/lib/x/liba.so", "a").Text("/usr/lib/x/libb.so", "b").Link("/bin/sh", "busybox")
	var layer bytes.Buffer
	if err := tree.writeTar(&layer); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"bin": "-> usr/bin", "lib": "-> usr/lib", "usr/": "", "usr/bin/": "", "usr/bin/sh": "-> busybox",
		"usr/lib/": "", "usr/lib/x/": "", "usr/lib/x/liba.so": "a", "usr/lib/x/libb.so": "b",
	}
	if diff := cmp.Diff(want, members(t, layer.Bytes())); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestWriteReportsTheFirstMissingFile(t *testing.T) {
	tree := NewTree().File("/a", "/does/not/exist").File("/b", "/neither")
	err := Image{Name: "a:1", Root: tree}.Write(filepath.Join(t.TempDir(), "image.tar"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("error %v, want one that says a file does not exist", err)
	}
}

func TestCloneLeavesTheOriginalAlone(t *testing.T) {
	original := NewTree().Text("/a", "1")
	original.Clone().Text("/b", "2")
	if len(original.entries) != 1 {
		t.Errorf("original has %d entries, want 1", len(original.entries))
	}
}

func TestParseLdd(t *testing.T) {
	const out = `	linux-vdso.so.1 (0x00007ffe1)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)
	/lib64/ld-linux-x86-64.so.2 (0x00007f2)
`
	got, err := parseLdd(out)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("libraries (-want +got):\n%s", diff)
	}
	if _, err := parseLdd("	libfoo.so.1 => not found\n"); err == nil {
		t.Error("a missing library is no error")
	}
}
