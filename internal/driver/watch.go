package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/quota"
)

// NVIDIA's MIG manager tells with this label of the node what has become of the configuration that it was asked for.
const migStateLabel = "nvidia.com/mig.config.state"

// isReconfiguring says whether the MIG manager is at work on a node, or waits for its reboot.
func isReconfiguring(node *corev1.Node) bool {
	state := node.Labels[migStateLabel]
	return state == "pending" || state == "rebooting"
}

// watchNode looks at the node's labels until ctx ends or the returned function is called.
func (d *Driver) watchNode(ctx context.Context) func() {
	ctx, cancel := context.WithCancel(ctx)
	nodes := d.config.Client.CoreV1().Nodes()
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, d.config.NodeName).String()
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.FieldSelector = only
				return nodes.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.FieldSelector = only
				return nodes.Watch(ctx, options)
			},
		}, d.config.Client),
		ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { d.sawNode(object) },
			UpdateFunc: func(_, object any) { d.sawNode(object) },
		},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		controller.RunWithContext(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// sawNode asks for a discovery at once when the MIG manager begins or ends, and minds device plugins.
func (d *Driver) sawNode(object any) {
	node, ok := object.(*corev1.Node)
	if !ok || node.Name != d.config.NodeName {
		return
	}
	d.sawAllocatable(node)
	if now := isReconfiguring(node); d.reconfiguring.Swap(now) != now {
		d.lookSoon()
	}
}

// lookSoon asks for a discovery at once.
func (d *Driver) lookSoon() {
	select {
	case d.wake <- struct{}{}:
	default: // one is asked for already
	}
}

// taints keep new claims away from unhealthy GPUs, and from those that can be partitioned while an administrator's tool
// partitions them.
func (d *Driver) taints() map[string][]resourceapi.DeviceTaint {
	taints := d.healthTaints()
	if !d.reconfiguring.Load() {
		return taints
	}
	for _, device := range d.node.devices {
		if device.MIG != nil {
			taints[device.UUID] = append(taints[device.UUID], resourceapi.DeviceTaint{Key: v1alpha1.TaintReconfiguring, Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	}
	return taints
}

// askVersion finds out, once, whether the cluster's scheduler counts a share of a GPU against what partitions
// of it take. That of Kubernetes 1.36 and before does not.
func (d *Driver) askVersion(ctx context.Context) {
	if d.scheduler.Load() != nil {
		return
	}
	version, err := d.config.Client.Discovery().ServerVersion()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Ask for the version of Kubernetes")
		return
	}
	mixes := ""
	if minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+")); err == nil && version.Major == "1" && minor < 37 {
		mixes = version.GitVersion
	}
	d.scheduler.Store(&mixes)
}

// explain adds why a scheduler may have allocated what cannot be had together.
func (d *Driver) explain(err error) error {
	if mixes := d.scheduler.Load(); errors.Is(err, quota.ErrTwoModes) && mixes != nil && *mixes != "" {
		return fmt.Errorf("%w; the scheduler of Kubernetes %s does not keep shares and partitions of one GPU apart, that of 1.37 does: until then keep them on different nodes", err, *mixes)
	}
	return err
}
