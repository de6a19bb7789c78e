package nvml

import (
	"fmt"

	"k8s.io/klog/v2"
)

// toolkitLog hands the container toolkit's log, which tells of each file that it looks for, to ours at a level where it
// does not bury what matters.
type toolkitLog struct{ logger klog.Logger }

func (l toolkitLog) Tracef(format string, args ...any) {
	l.logger.V(8).Info(fmt.Sprintf(format, args...))
}
func (l toolkitLog) Debugf(format string, args ...any) {
	l.logger.V(6).Info(fmt.Sprintf(format, args...))
}
func (l toolkitLog) Infof(format string, args ...any) {
	l.logger.V(6).Info(fmt.Sprintf(format, args...))
}
func (l toolkitLog) Warningf(format string, args ...any) {
	l.logger.V(4).Info(fmt.Sprintf(format, args...))
}
func (l toolkitLog) Errorf(format string, args ...any) { l.logger.Info(fmt.Sprintf(format, args...)) }
