package preflight

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// The reasons of the Events on a node.
const (
	ReasonFailed  = "PreflightFailed"
	ReasonWarning = "PreflightWarning"
)

// How long a plugin may take until it serves and its slices are stored, and how often that is looked at.
const (
	begins    = time.Minute
	lookEvery = 2 * time.Second
)

// Tell makes all checks once the plugin has begun to serve, or has had time to, and tells of what is not ok. A note says
// the same as long as the same is wrong, so that Events of it can be counted instead of repeated.
func Tell(ctx context.Context, c Config, ready func() error, tell func(reason, note string)) {
	// What has not begun by then is one of the things to be told of.
	_ = wait.PollUntilContextTimeout(ctx, lookEvery, begins, true, func(ctx context.Context) (bool, error) {
		return ready() == nil && c.isPublished(ctx), nil
	})
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	report := Run(ctx, c)
	for _, f := range report.Findings {
		if f.Level == OK || ctx.Err() != nil {
			continue
		}
		logger.Info("Preflight", "check", f.Check, "level", f.Level, "found", f.Found, "remedy", f.Remedy)
		reason := ReasonWarning
		if f.Level == Fail {
			reason = ReasonFailed
		}
		tell(reason, fmt.Sprintf("%s: %s. To mend it: %s", f.Check, f.Found, f.Remedy))
	}
	logger.Info("Preflight is done", "ok", report.Count(OK), "warnings", report.Count(Warn), "failed", report.Count(Fail))
}

func (c Config) isPublished(ctx context.Context) bool {
	if c.Client == nil {
		return true
	}
	stored, err := c.stored(ctx)
	return err == nil && len(stored) > 0
}
