package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Program adds a program and, when it is dynamically linked, what its loader
// would load: the loader itself and the libraries, where the loader looks.
func (t *Tree) Program(destination, source string) *Tree {
	t.File(destination, source)
	libraries, err := Libraries(source)
	if err != nil {
		return t.fail(err)
	}
	for _, library := range libraries {
		t.File(library, library)
	}
	return t
}

// Libraries lists the files that loading a program or library of this machine
// needs, the loader among them. A static program needs none.
func Libraries(path string) ([]string, error) {
	dynamic, err := isDynamic(path)
	if err != nil || !dynamic {
		return nil, err
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w", path, err)
	}
	return parseLdd(string(out))
}

func isDynamic(path string) (bool, error) {
	file, err := elf.Open(path)
	if err != nil {
		return false, fmt.Errorf("read program %s: %w", path, err)
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	return len(needed) > 0, err
}

// parseLdd reads lines such as
//
//	linux-vdso.so.1 (0x00007ffe...)
//	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)
//	/lib64/ld-linux-x86-64.so.2 (0x00007f...)
func parseLdd(out string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(out) {
		name, target, found := strings.Cut(strings.TrimSpace(line), " => ")
		if !found {
			target = name
		}
		if strings.Contains(target, "not found") {
			return nil, errors.New("library not found: " + name)
		}
		path, _, _ := strings.Cut(target, " ")
		if filepath.IsAbs(path) {
			libraries = append(libraries, path)
		}
	}
	return libraries, nil
}
