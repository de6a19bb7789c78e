package driver

import (
	"fmt"

	"k8s.io/klog/v2"
)

// inUse says which process still uses what a claim was given. The kubelet unprepares when all containers have ended; a
// claim that only the API has lost, as when its pod was force-deleted, may have some that have not, and what they hold
// must not be given out again.
func (d *Driver) inUse(r record) error {
	pid, used, err := d.store.User(string(r.UID))
	if err != nil {
		return fmt.Errorf("look for processes of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	if used && r.Name == "" {
		return fmt.Errorf("the claim with uid %s is gone and its record is lost, and process %d still uses its share, which is kept until that ends: end it, or restart the node if it cannot be killed", r.UID, pid)
	}
	if used {
		return fmt.Errorf("claim %s/%s (uid %s) is gone, and process %d still uses its share, which is kept until that ends: end it, or restart the node if it cannot be killed", r.Namespace, r.Name, r.UID, pid)
	}
	for _, a := range r.Allocations {
		// A partition in use cannot be destroyed, and what an administrator looks at is others'.
		if a.AdminAccess || !a.Limits.Whole || a.Partition != nil || d.config.Processes == nil {
			continue
		}
		processes, err := d.config.Processes.Processes(a.GPU)
		if err != nil {
			klog.Background().Error(err, "Look for processes of a claim that is gone", "claim", klog.KRef(r.Namespace, r.Name), "gpu", a.GPU)
		}
		if len(processes) > 0 {
			return fmt.Errorf("claim %s/%s (uid %s) is gone, and process %d still uses its GPU %s, which is kept until that ends: end it, or restart the node if it cannot be killed",
				r.Namespace, r.Name, r.UID, processes[0].PID, a.GPU)
		}
	}
	return nil
}
