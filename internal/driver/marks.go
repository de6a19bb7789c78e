package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"

	"aliquot.dev/aliquot/internal/gpu"
)

// slot is a place in a GPU where a partition of ours is or may be.
type slot struct {
	gpu, profile string
	placement    gpu.Placement
}

// marks says which partitions of the node are ours, a file each. A mark is made before its partition and removed after
// it: what has none is somebody else's and never removed. Claims' records cannot tell that, since a claim may be given a
// partition that was there already, and a record may be lost. A boot ends all partitions, and so all marks of
// earlier ones.
type marks struct {
	dir  string
	boot string
	// changing is called before anything changes.
	changing func() error
}

func newMarks(dir string, changing func() error) marks {
	return marks{dir: dir, boot: bootID(), changing: changing}
}

// bootID tells one boot of the node from another; empty where the kernel does not say.
func bootID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(boot)
}

func (m marks) path(s slot) string {
	name := fmt.Sprintf("%s_%d_%d_%s", s.gpu, s.placement.Start, s.placement.Size, s.profile)
	return filepath.Join(m.dir, filepath.Base(name))
}

// parseMark is the reverse of path; false for what is no mark.
func parseMark(name string) (slot, bool) {
	fields := strings.SplitN(name, "_", 4)
	if len(fields) != 4 || fields[0] == "" || fields[3] == "" {
		return slot{}, false
	}
	start, startErr := strconv.Atoi(fields[1])
	size, sizeErr := strconv.Atoi(fields[2])
	s := slot{gpu: fields[0], profile: fields[3], placement: gpu.Placement{Start: start, Size: size}}
	return s, startErr == nil && sizeErr == nil && start >= 0 && size > 0
}

func (m marks) add(s slot) error {
	err := m.changing()
	if err == nil {
		err = os.MkdirAll(m.dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("mark partition %s: %w", s.profile, err)
	}
	if err := renameio.WriteFile(m.path(s), []byte(m.boot), 0o600, renameio.WithTempDir(m.dir)); err != nil {
		return fmt.Errorf("mark partition %s: %w", s.profile, err)
	}
	return nil
}

// remove is no error for what has no mark.
func (m marks) remove(s slot) error {
	if err := m.changing(); err != nil {
		return fmt.Errorf("remove the mark of partition %s: %w", s.profile, err)
	}
	if err := os.Remove(m.path(s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mark of partition %s: %w", s.profile, err)
	}
	return nil
}

// load reads all marks of this boot and removes whatever else is there.
func (m marks) load() (map[slot]bool, error) {
	entries, err := os.ReadDir(m.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the marks of partitions: %w", err)
	}
	all := map[slot]bool{}
	for _, entry := range entries {
		path := filepath.Join(m.dir, entry.Name())
		s, ok := parseMark(entry.Name())
		boot, err := os.ReadFile(path)
		if ok && err == nil && string(boot) == m.boot {
			all[s] = true
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return nil, fmt.Errorf("remove an old mark: %w", err)
		}
	}
	return all, nil
}
