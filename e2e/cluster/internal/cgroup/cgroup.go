// Package cgroup gives each cluster a control group of its own and each node a
// view in which that group is the root, so that a node's kubelet works with
// default paths and everything it made can be found and removed. It knows both
// versions of the interface; it sets no limits.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is where the node expects the hierarchies.
const mountPoint = "/sys/fs/cgroup"

// A hierarchy is one tree of control groups. Version 1 has several, one for
// each controller or set of them; version 2 has one.
type hierarchy struct {
	path    string // where it is mounted
	kind    string // file system: cgroup or cgroup2
	options string // mount options that name a hierarchy of version 1
}

// Hierarchies are those the machine uses.
type Hierarchies []hierarchy

// Mounted finds the hierarchies in this process's mounts.
func Mounted() (Hierarchies, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found, err := parse(file)
	if err == nil && len(found) == 0 {
		err = errors.New("no cgroup hierarchy is mounted")
	}
	return found, err
}

// parse reads /proc/self/mountinfo. Where version 1 is mounted, a version 2
// hierarchy beside it has no controllers and is left out.
func parse(mountinfo io.Reader) (Hierarchies, error) {
	var v1, v2 Hierarchies
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		mount, source, ok := strings.Cut(lines.Text(), " - ")
		fields, tail := strings.Fields(mount), strings.Fields(source)
		if !ok || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		switch path := fields[4]; tail[0] {
		case "cgroup":
			v1 = append(v1, hierarchy{path: path, kind: "cgroup", options: naming(tail[2])})
		case "cgroup2":
			v2 = append(v2, hierarchy{path: path, kind: "cgroup2"})
		}
	}
	if len(v1) > 0 {
		return v1, lines.Err()
	}
	return v2[:min(1, len(v2))], lines.Err()
}

// naming keeps of a version 1 mount's options those that name the hierarchy.
func naming(options string) string {
	kept := slices.DeleteFunc(strings.Split(options, ","), func(option string) bool {
		return option == "rw" || option == "ro" || option == "xattr" || option == "clone_children" ||
			strings.HasPrefix(option, "release_agent=")
	})
	if len(kept) == 1 && strings.HasPrefix(kept[0], "name=") {
		kept = append(kept, "none") // no controllers
	}
	return strings.Join(kept, ",")
}

// Create makes the group in every hierarchy, with its parents.
func (hs Hierarchies) Create(group string) error {
	for _, h := range hs {
		if err := h.create(group); err != nil {
			return fmt.Errorf("create cgroup %s in %s: %w", group, h.path, err)
		}
	}
	return nil
}

func (h hierarchy) create(group string) error {
	at := h.path
	for _, name := range strings.Split(strings.Trim(group, "/"), "/") {
		parent := at
		at = filepath.Join(at, name)
		if h.kind == "cgroup2" {
			if err := delegate(parent); err != nil {
				return err
			}
		}
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := inheritCPUs(parent, at); err != nil {
			return err
		}
	}
	return nil
}

// delegate lets the children of a version 2 group have its controllers.
func delegate(group string) error {
	controllers, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(controllers)) {
		if err := write(filepath.Join(group, "cgroup.subtree_control"), "+"+controller); err != nil {
			return err
		}
	}
	return nil
}

// inheritCPUs fills what version 1 leaves empty in a new cpuset group: without
// it no process can enter.
func inheritCPUs(parent, child string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(child, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(own)) != "" {
			continue
		}
		inherited, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return err
		}
		if value := strings.TrimSpace(string(inherited)); value != "" {
			if err := write(filepath.Join(child, name), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// Join moves the calling process into the group.
func (hs Hierarchies) Join(group string) error {
	for _, h := range hs {
		// The kernel reads 0 as the process that writes, in any pid namespace.
		if err := write(filepath.Join(h.path, group, "cgroup.procs"), "0"); err != nil {
			return fmt.Errorf("enter cgroup %s: %w", group, err)
		}
	}
	return nil
}

// MountAt mounts the hierarchies under root, as seen from the cgroup namespace of
// the caller, whose group is their root.
func (hs Hierarchies) MountAt(root string) error {
	base := filepath.Join(root, mountPoint)
	if hs[0].kind == "cgroup2" {
		if err := unix.Mount("cgroup2", base, "cgroup2", 0, ""); err != nil {
			return fmt.Errorf("mount cgroups: %w", err)
		}
		return leaveRoot(base)
	}
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", mountPoint, err)
	}
	for _, h := range hs {
		at := filepath.Join(base, filepath.Base(h.path))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", at, "cgroup", 0, h.options); err != nil {
			return fmt.Errorf("mount cgroup hierarchy %s: %w", h.options, err)
		}
	}
	return nil
}

// leaveRoot moves the caller from the root of its view into a leaf: a version 2
// group that has processes cannot give controllers to its children.
func leaveRoot(base string) error {
	leaf := filepath.Join(base, "init")
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return err
	}
	if err := write(filepath.Join(leaf, "cgroup.procs"), "0"); err != nil {
		return err
	}
	return delegate(base)
}

// Remove removes the group and all below it. Its processes must be dead; a
// group that is not there is no error.
func (hs Hierarchies) Remove(group string) error {
	var problems []error
	for _, h := range hs {
		problems = append(problems, removeTree(filepath.Join(h.path, group)))
	}
	return errors.Join(problems...)
}

func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
	}
	return removeEmpty(path)
}

// removeEmpty retries for a moment: the kernel lets go of a dead process's
// group a little after the process is reaped.
func removeEmpty(path string) error {
	const patience = 10 * time.Second
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Rmdir(path)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY || time.Since(start) > patience {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
	}
}

// write writes an existing control file in one write, as the kernel asks.
func write(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(value)
	return err
}
