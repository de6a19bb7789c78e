package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// flock is a lock that processes share through a file, by flock(2). The kernel releases it when its holder ends, however
// that ends. It is not safe for concurrent use.
type flock struct {
	path string
	file *os.File // nil until it is first wanted
}

// lock waits for the lock.
func (l *flock) lock() error {
	_, err := l.apply(unix.LOCK_EX)
	return err
}

// try takes the lock if nobody has it.
func (l *flock) try() (bool, error) {
	return l.apply(unix.LOCK_EX | unix.LOCK_NB)
}

// isHeld says whether another process has the lock. Those who ask are not in each other's way.
func (l *flock) isHeld() (bool, error) {
	free, err := l.apply(unix.LOCK_SH | unix.LOCK_NB)
	if free {
		l.unlock()
	}
	return !free, err
}

func (l *flock) unlock() {
	_, _ = l.apply(unix.LOCK_UN) // of an open file that cannot fail
}

func (l *flock) apply(how int) (bool, error) {
	if err := l.open(); err != nil {
		return false, err
	}
	for {
		err := unix.Flock(int(l.file.Fd()), how)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("lock %s: %w", l.path, err)
		}
	}
}

func (l *flock) open() error {
	if l.file != nil {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(l.path), 0o755)
	if err == nil {
		l.file, err = os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		return fmt.Errorf("open lock: %w", err)
	}
	return nil
}
