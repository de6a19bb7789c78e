package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/cluster/internal/cgroup"
)

// An entry tells of one cluster of this machine. Its file is locked while the
// cluster's keeper lives, and the kernel drops the lock when it dies, so a file
// that can be locked tells of a dead cluster's leftovers.
type entry struct {
	Dir  string `json:"dir"`
	Keep bool   `json:"keep,omitempty"`
	PID  int    `json:"pid,omitempty"` // of the keeper

	path string
}

func registryDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "aliquot", "cluster", "live")
	return dir, os.MkdirAll(dir, 0o755)
}

// register makes a locked entry. The lock belongs to the open file, which the
// keeper inherits.
func register(p *plan) (*entry, *os.File, error) {
	dir, err := registryDir()
	if err != nil {
		return nil, nil, err
	}
	e := &entry{Dir: p.Dir, Keep: p.Keep, path: filepath.Join(dir, p.ID)}
	file, err := os.OpenFile(e.path, os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o644)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("lock %s: %w", e.path, err)
	}
	return e, file, e.write()
}

func (e *entry) write() error {
	content, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return os.WriteFile(e.path, content, 0o644)
}

func (e *entry) id() string { return filepath.Base(e.path) }

// alive tells whether the cluster's keeper lives.
func (e *entry) alive() bool {
	file, err := os.Open(e.path)
	if err != nil {
		return false
	}
	defer file.Close()
	return unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK
}

// await returns when the cluster's keeper is gone.
func (e *entry) await() error {
	file, err := os.Open(e.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_SH)
		if err != unix.EINTR {
			return err
		}
	}
}

// remove removes what a cluster leaves when its processes are dead. The entry
// goes last: until then a later sweep can finish the work.
func (e *entry) remove() error {
	hierarchies, err := cgroup.Mounted()
	if err != nil {
		return err
	}
	if err := hierarchies.Remove(groupOf(e.id())); err != nil {
		return err
	}
	if !e.Keep {
		if err := os.RemoveAll(e.Dir); err != nil {
			return fmt.Errorf("remove cluster directory: %w", err)
		}
	}
	if err := os.Remove(e.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// entries lists the clusters of this machine, dead ones too.
func entries() ([]*entry, error) {
	dir, err := registryDir()
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []*entry
	for _, file := range files {
		e := &entry{path: filepath.Join(dir, file.Name())}
		content, err := os.ReadFile(e.path)
		if errors.Is(err, fs.ErrNotExist) || strings.TrimSpace(string(content)) == "" {
			continue // just made, or just gone
		}
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(content, e); err != nil {
			return nil, fmt.Errorf("read %s: %w", e.path, err)
		}
		found = append(found, e)
	}
	return found, nil
}

// Clean removes what clusters left whose processes were all killed: cgroups
// and directories. Clusters that live are left alone.
func Clean() error {
	all, err := entries()
	if err != nil {
		return err
	}
	var problems []error
	for _, e := range all {
		if !e.alive() {
			problems = append(problems, e.remove())
		}
	}
	return errors.Join(problems...)
}
