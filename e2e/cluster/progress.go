package cluster

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress tells people where the time goes.
type progress struct {
	mu    sync.Mutex
	log   io.Writer
	start time.Time
}

func newProgress(log io.Writer) *progress {
	if log == nil {
		log = io.Discard
	}
	return &progress{log: log, start: time.Now()}
}

// done tells what is reached, and when since the start.
func (p *progress) done(what string) { p.took(what, p.start) }

// took tells what is reached, and how long that took.
func (p *progress) took(what string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.log, "%6.1fs  %s\n", time.Since(since).Seconds(), what)
}
