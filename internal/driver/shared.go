package driver

import (
	"errors"
	"fmt"
	"io"

	"k8s.io/klog/v2"
)

// shared is what several processes of the driver on one node have in common while one replaces the other: a lock, and in
// its file how often records and marks, and the GPUs' partitions, were changed. Each process keeps its books in memory
// and knows by these numbers when another one has made them untrue. Whoever changes something changes first: one that is
// killed in between leaves no change uncounted. Nothing of it has to outlive a reboot.
type shared struct {
	flock
	seen changes // as this process left them, or last saw them
}

type changes struct {
	books      uint64 // changes of records and marks
	partitions uint64 // changes of partitions and MIG modes
}

// countsLimit is more than two numbers take.
const countsLimit = 64

// read is {0, 0} for a file that was never written.
func (s *shared) read() (changes, error) {
	text := make([]byte, countsLimit)
	n, err := s.file.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return changes{}, fmt.Errorf("read what other processes changed: %w", err)
	}
	var now changes
	_, _ = fmt.Sscan(string(text[:n]), &now.books, &now.partitions) // what cannot be read differs from what was seen
	return now, nil
}

func (s *shared) countBooks() error {
	s.seen.books++
	return s.write()
}

func (s *shared) countPartitions() error {
	s.seen.partitions++
	return s.write()
}

// write overwrites the file in place: its numbers only grow, and so does their text.
func (s *shared) write() error {
	if err := s.open(); err != nil {
		return err
	}
	if _, err := s.file.WriteAt(fmt.Appendf(nil, "%d %d\n", s.seen.books, s.seen.partitions), 0); err != nil {
		return fmt.Errorf("tell other processes of a change: %w", err)
	}
	return nil
}

// exclusively runs a step while no other one runs, in this process or in another one of the driver on the node, and with
// books that say what those before left.
func (d *Driver) exclusively(step func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.shared.lock()
	if err == nil {
		defer d.shared.unlock()
		err = d.catchUp()
	}
	if err != nil {
		d.setReady(err)
		return err
	}
	return step()
}

// catchUp takes in what other processes changed since this one last looked.
func (d *Driver) catchUp() error {
	now, err := d.shared.read()
	if err != nil || now == d.shared.seen {
		return err
	}
	before := d.shared.seen
	d.shared.seen = now
	if now.books != before.books {
		err = d.load()
	}
	if now.partitions != before.partitions {
		d.lookAgain()
	}
	if err != nil {
		d.shared.seen = before // so that the next step tries again
	}
	return err
}

// lookAgain looks at the GPUs after another process changed their partitions: what was known may be wrong, and so may
// what a discovery finds that is under way.
func (d *Driver) lookAgain() {
	d.changes++
	if d.node.devices == nil || d.node.err != nil {
		return // there will be a discovery before anything is prepared
	}
	n, _, err := d.ask()
	if err != nil {
		klog.Background().Error(err, "Look at the GPUs that another process has partitioned")
	}
	d.take(n, err)
}
