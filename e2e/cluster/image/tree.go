package image

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Tree is the files of an image. Its methods that add return the tree; the
// first error stays and comes out when the image is written.
type Tree struct {
	entries map[string]entry
	err     error
}

type entry struct {
	source  string // a regular file of this machine
	content string // or text
	link    string // or the target of a symbolic link
	mode    fs.FileMode
}

// NewTree returns an empty tree.
func NewTree() *Tree { return &Tree{entries: make(map[string]entry)} }

// Clone returns a tree that starts with this one's files.
func (t *Tree) Clone() *Tree {
	clone := NewTree()
	clone.err = t.err
	for name, e := range t.entries {
		clone.entries[name] = e
	}
	return clone
}

// File adds a file of this machine, with its permissions. Links are followed.
func (t *Tree) File(destination, source string) *Tree {
	info, err := os.Stat(source)
	if err != nil {
		return t.fail(err)
	}
	if !info.Mode().IsRegular() {
		return t.fail(fmt.Errorf("%s is not a regular file", source))
	}
	return t.add(destination, entry{source: source, mode: info.Mode().Perm()})
}

// Text adds a file with the given content.
func (t *Tree) Text(destination, content string) *Tree {
	return t.add(destination, entry{content: content, mode: 0o644})
}

// Link adds a symbolic link.
func (t *Tree) Link(destination, target string) *Tree {
	return t.add(destination, entry{link: target})
}

// Folder adds an empty folder.
func (t *Tree) Folder(destination string, mode fs.FileMode) *Tree {
	return t.add(destination, entry{mode: fs.ModeDir | mode})
}

// Directory adds what lies in a directory of this machine: folders, regular
// files and links, which stay links.
func (t *Tree) Directory(destination, source string) *Tree {
	err := filepath.WalkDir(source, func(at string, found fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, at)
		if err != nil || relative == "." {
			return err
		}
		inside := path.Join(destination, relative)
		switch {
		case found.IsDir():
			info, err := found.Info()
			if err != nil {
				return err
			}
			t.Folder(inside, info.Mode().Perm())
		case found.Type() == fs.ModeSymlink:
			target, err := os.Readlink(at)
			if err != nil {
				return err
			}
			t.Link(inside, target)
		default:
			t.File(inside, at)
		}
		return nil
	})
	return t.fail(err)
}

// merged are the folders that are links into /usr, as on every current system:
// what is mounted at /usr/lib must be found at /lib too.
var merged = []string{"bin", "sbin", "lib", "lib64"}

func (t *Tree) add(destination string, e entry) *Tree {
	name := strings.TrimPrefix(path.Clean("/"+destination), "/")
	if first, _, below := strings.Cut(name, "/"); below && slices.Contains(merged, first) {
		t.entries[first] = entry{link: "usr/" + first}
		name = "usr/" + name
	}
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if _, ok := t.entries[parent]; !ok {
			t.entries[parent] = entry{mode: fs.ModeDir | 0o755}
		}
	}
	t.entries[name] = e
	return t
}

func (t *Tree) fail(err error) *Tree {
	if t.err == nil {
		t.err = err
	}
	return t
}

// writeTar writes the tree in order of names, all owned by root.
func (t *Tree) writeTar(w io.Writer) error {
	if t.err != nil {
		return t.err
	}
	names := make([]string, 0, len(t.entries))
	for name := range t.entries {
		names = append(names, name)
	}
	slices.Sort(names)
	archive := tar.NewWriter(w)
	for _, name := range names {
		if err := t.entries[name].write(archive, name); err != nil {
			return err
		}
	}
	return archive.Close()
}

func (e entry) write(archive *tar.Writer, name string) error {
	header := &tar.Header{Name: name, Mode: int64(e.mode.Perm()), ModTime: created, Typeflag: tar.TypeReg}
	switch {
	case e.mode.IsDir():
		header.Name, header.Typeflag = name+"/", tar.TypeDir
		if e.mode&fs.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		return archive.WriteHeader(header)
	case e.link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.link, 0o777
		return archive.WriteHeader(header)
	case e.source == "":
		header.Size = int64(len(e.content))
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := io.WriteString(archive, e.content)
		return err
	}
	return e.copyFile(archive, header)
}

func (e entry) copyFile(archive *tar.Writer, header *tar.Header) error {
	file, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	header.Size = info.Size()
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}
