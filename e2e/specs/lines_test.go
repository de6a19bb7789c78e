//go:build e2e

package specs_test

import (
	"bytes"
	"sync"
)

// lines collects what a program prints while it runs.
type lines struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

// text is what was printed so far, whole lines only.
func (l *lines) text() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	printed := bytes.Clone(l.buffer.Bytes())
	return printed[:bytes.LastIndexByte(printed, '\n')+1]
}
