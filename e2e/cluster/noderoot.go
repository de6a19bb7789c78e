package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/cluster/internal/cgroup"
)

// enterRoot builds the node's file system and makes it the root of the calling
// process, in whose mount namespace all of it stays.
func (p *plan) enterRoot(node Node) error {
	root := p.node(node.Name, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := mountAll(root, p.rootMounts(node)); err != nil {
		return err
	}
	if err := copyRootLinks(root); err != nil {
		return err
	}
	hierarchies, err := cgroup.Mounted()
	if err != nil {
		return err
	}
	if err := hierarchies.MountAt(root); err != nil {
		return err
	}
	for _, mount := range node.Mounts {
		if err := bind(root, mount); err != nil {
			return err
		}
	}
	return changeRoot(root)
}

// A rootMount is one mount of a node's root. An empty kind is a bind mount.
type rootMount struct {
	source, target, kind, data string
	readOnly                   bool
}

func (p *plan) rootMounts(node Node) []rootMount {
	return []rootMount{
		{source: "tmpfs", target: "/", kind: "tmpfs", data: "mode=755"},
		{source: "/usr", target: "/usr", readOnly: true},
		{source: "/dev", target: "/dev"},
		{source: p.node(node.Name, "etc"), target: "/etc"},
		// On disk: containerd's snapshots cannot lie on an overlay or in memory.
		{source: p.node(node.Name, "var"), target: "/var"},
		{source: p.path("logs", node.Name), target: nodeLogs},
		{source: p.Programs, target: nodePrograms, readOnly: true},
		{source: p.Programs, target: "/opt/cni/bin", readOnly: true},
		{source: "tmpfs", target: "/run", kind: "tmpfs", data: "mode=755"},
		{source: "tmpfs", target: "/tmp", kind: "tmpfs", data: "mode=1777"},
		{source: "tmpfs", target: "/root", kind: "tmpfs", data: "mode=700"},
		{source: "proc", target: "/proc", kind: "proc"},
		// A mount of its own shows the cluster's network devices, not the machine's.
		{source: "sysfs", target: "/sys", kind: "sysfs"},
	}
}

func mountAll(root string, mounts []rootMount) error {
	for _, m := range mounts {
		if m.kind == "" {
			if err := bind(root, Mount{Source: m.source, Target: m.target, ReadOnly: m.readOnly}); err != nil {
				return err
			}
			continue
		}
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, target, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// bind binds a file or directory into the root, with what is mounted below it.
// A source that is missing is made a directory: those of the user were checked
// before.
func bind(root string, m Mount) error {
	info, err := os.Stat(m.Source)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(m.Source, 0o755)
	}
	if err != nil {
		return err
	}
	target := filepath.Join(root, m.Target)
	if err := makeMountPoint(target, info == nil || info.IsDir()); err != nil {
		return err
	}
	if err := unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s at %s: %w", m.Source, m.Target, err)
	}
	if !m.ReadOnly {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", m.Target, err)
	}
	return nil
}

func makeMountPoint(path string, directory bool) error {
	if directory {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// copyRootLinks gives the root the machine's /bin, /lib and so on: links into
// /usr on most systems, directories of their own on others. /var/run is a link
// in every system.
func copyRootLinks(root string) error {
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		info, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Mode().Type() != fs.ModeSymlink {
			if err := bind(root, Mount{Source: name, Target: name, ReadOnly: true}); err != nil {
				return err
			}
			continue
		}
		target, err := os.Readlink(name)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	err := os.Symlink("/run", filepath.Join(root, "var/run"))
	if errors.Is(err, fs.ErrExist) {
		return nil // a node that starts again
	}
	return err
}

// changeRoot makes root the root and lets go of the old one.
func changeRoot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	// With both at the same place, the old root lies over the new one until it
	// is unmounted.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	// Pods may ask for mounts that propagate to them, as on any node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	return newBoot()
}

// newBoot gives the node a boot id of its own and a fresh one each time, by
// which kubelet knows that the node was rebooted.
func newBoot() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	const file = "/run/boot_id"
	if err := os.WriteFile(file, id, 0o444); err != nil {
		return err
	}
	if err := unix.Mount(file, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("set the boot id: %w", err)
	}
	return nil
}
