//go:build e2e

package specs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
)

// breakPlugin kills the process; there may be none at the moment.
func breakPlugin(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.pluginBack(ctx, func(ctx context.Context) error { return s.KillPlugin(ctx, s.node) })
}

// pluginBack does what ends the plugin's process, and waits until there is a new one that serves.
func (s *spec) pluginBack(ctx context.Context, end func(context.Context) error) error {
	var before corev1.Pod
	if err := until(ctx, "the plugin's process is ended", func(ctx context.Context) (_ bool, err error) {
		if before, err = s.Plugin(ctx, s.node); err != nil {
			return false, err
		}
		err = end(ctx)
		return err == nil, err
	}); err != nil {
		return err
	}
	return until(ctx, "the plugin serves again", func(ctx context.Context) (bool, error) {
		now, err := s.Plugin(ctx, s.node)
		return (now.UID != before.UID || scenario.Restarts(now) > scenario.Restarts(before)) && scenario.Ready(now), err
	})
}

func breakKubelet(ctx context.Context, s *spec, _ *rand.Rand) error {
	before := time.Now()
	if err := s.KillOnNode(ctx, s.node, "kubelet"); err != nil {
		return err
	}
	return s.kubeletBack(ctx, before)
}

// kubeletBack waits until a kubelet that was started after a moment looks after pods. It answers long before: first it tries for three seconds
// to find each container whose start a killed containerd did not finish.
func (s *spec) kubeletBack(ctx context.Context, since time.Time) error {
	return until(ctx, "the kubelet is ready", func(ctx context.Context) (bool, error) {
		node, err := s.Client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		if i < 0 {
			return false, nil
		}
		ready := node.Status.Conditions[i]
		if ready.Status != corev1.ConditionTrue || !ready.LastHeartbeatTime.After(since) {
			return false, fmt.Errorf("it says at %s: %s", ready.LastHeartbeatTime, ready.Message)
		}
		return true, nil
	})
}

// breakContainerd leaves the containers alone: their shims are not its children.
func breakContainerd(ctx context.Context, s *spec, _ *rand.Rand) error {
	if err := s.KillOnNode(ctx, s.node, "containerd"); err != nil {
		return err
	}
	return until(ctx, "containerd serves", func(ctx context.Context) (bool, error) {
		_, err := s.OnNode(ctx, s.node, "ctr", "version")
		return err == nil, err
	})
}

// breakNode reboots it: specs and share files are gone, and all pods start anew.
func breakNode(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.pluginBack(ctx, func(ctx context.Context) error {
		return errors.Join(s.StopNode(ctx, s.node), s.StartNode(context.WithoutCancel(ctx), s.node))
	})
}

func breakAPIServer(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.breakControlPlane(ctx, "kube-apiserver")
}

func breakEtcd(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.breakControlPlane(ctx, "etcd")
}

func (s *spec) breakControlPlane(ctx context.Context, program string) error {
	if err := s.KillControlPlane(ctx, program); err != nil {
		return err
	}
	return until(ctx, "the API server serves", func(ctx context.Context) (bool, error) {
		err := s.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return err == nil, err
	})
}

// Where those serve that wait for the API server at their start; the nodes share their network.
const (
	schedulerPort         = 10259
	controllerManagerPort = 10257
)

func breakScheduler(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.breakClient(ctx, "kube-scheduler", schedulerPort)
}

func breakControllerManager(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.breakClient(ctx, "kube-controller-manager", controllerManagerPort)
}

func (s *spec) breakClient(ctx context.Context, program string, port int) error {
	if err := s.KillControlPlane(ctx, program); err != nil {
		return err
	}
	return until(ctx, program+" serves", func(ctx context.Context) (bool, error) {
		_, err := s.OnNode(ctx, s.node, "bash", "-c", fmt.Sprintf(": </dev/tcp/127.0.0.1/%d", port))
		return err == nil, err
	})
}

// breakOurController kills both replicas.
func breakOurController(ctx context.Context, s *spec, _ *rand.Rand) error {
	before, err := s.controllerRestarts(ctx)
	if err != nil {
		return err
	}
	if err := until(ctx, "the controller's processes are killed", func(ctx context.Context) (bool, error) {
		var errs []error
		for _, node := range s.Nodes() {
			_, err := s.OnNode(ctx, node, "sh", "-c", "! pidof aliquot-controller || kill -9 $(pidof aliquot-controller)")
			errs = append(errs, err) // of a node that is down
		}
		err := errors.Join(errs...)
		return err == nil, err
	}); err != nil {
		return err
	}
	return until(ctx, "the controller serves again", func(ctx context.Context) (bool, error) {
		now, err := s.controllerRestarts(ctx)
		return now > before, err
	})
}

// controllerRestarts is how often the controller's pods were started anew, once all of them serve.
func (s *spec) controllerRestarts(ctx context.Context) (restarts int32, err error) {
	err = until(ctx, "all of the controller serves", func(ctx context.Context) (bool, error) {
		pods, err := s.controllers(ctx)
		restarts = 0
		for _, pod := range pods {
			if !scenario.Ready(pod) {
				return false, fmt.Errorf("pod %s is not ready", pod.Name)
			}
			restarts += scenario.Restarts(pod)
		}
		return len(pods) > 0, err
	})
	return restarts, err
}

// breakPluginsPod has the DaemonSet make another.
func breakPluginsPod(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.pluginBack(ctx, func(ctx context.Context) error {
		plugin, err := s.Plugin(ctx, s.node)
		if err != nil {
			return err
		}
		return s.Client.CoreV1().Pods(release.Namespace).Delete(ctx, plugin.Name, metav1.DeleteOptions{})
	})
}
