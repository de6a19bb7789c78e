package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"aliquot.dev/aliquot/e2e/cluster/internal/supervise"
)

const pollInterval = 100 * time.Millisecond

// awaitReady returns when pods can run, and tells of the stages on the way. It
// fails early when a process of the cluster ends.
func (c *Cluster) awaitReady(ctx context.Context) error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var images sync.WaitGroup
	imageErrs := make([]error, len(c.plan.Nodes))
	for i, node := range c.plan.Nodes {
		images.Go(func() { imageErrs[i] = c.loadOwnImages(ctx, node.Name) })
	}
	err = c.awaitStages(ctx, client)
	images.Wait()
	return errors.Join(append(imageErrs, err)...)
}

func (c *Cluster) awaitStages(ctx context.Context, client kubernetes.Interface) error {
	if err := c.await(ctx, "API server ready", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}); err != nil {
		return err
	}
	if err := c.await(ctx, "nodes ready", func(ctx context.Context) error {
		return c.checkNodes(ctx, client)
	}); err != nil {
		return err
	}
	// Pods are refused until their service account is there.
	return c.await(ctx, "service accounts ready", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// await asks until the answer is no error.
func (c *Cluster) await(ctx context.Context, stage string, ask func(context.Context) error) error {
	var answer error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := c.Check(ctx); err != nil {
			return false, err
		}
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		answer = ask(attempt)
		return answer == nil, nil
	})
	if err != nil {
		return fmt.Errorf("await %s: %w", stage, errors.Join(err, answer))
	}
	c.progress.done(stage)
	return nil
}

// checkNodes tells why some node cannot take pods yet.
func (c *Cluster) checkNodes(ctx context.Context, client kubernetes.Interface) error {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	complaints := make(map[string]string)
	for _, name := range c.Nodes() {
		complaints[name] = "not registered"
	}
	for _, node := range list.Items {
		complaints[node.Name] = whyUnready(&node)
	}
	for _, name := range c.Nodes() {
		if complaints[name] != "" {
			return fmt.Errorf("node %s is not ready: %s", name, complaints[name])
		}
	}
	return nil
}

// whyUnready returns nothing for a node that takes pods.
func whyUnready(node *corev1.Node) string {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return condition.Message
		}
	}
	if len(node.Spec.Taints) > 0 {
		return "tainted " + node.Spec.Taints[0].Key
	}
	return ""
}

// Check tells of a process of the cluster that ended and should not have.
func (c *Cluster) Check(ctx context.Context) error {
	if c.keeper != nil && !c.entry.alive() {
		return fmt.Errorf("the cluster's keeper ended: %s", tail(c.plan.log("keeper")))
	}
	dead := func(client supervise.Client, log func(name string) string) error {
		statuses, err := client.Status(ctx)
		if err != nil {
			return nil // its supervisor is not up yet
		}
		for _, s := range statuses {
			if s.PID == 0 && !s.Stopped {
				return fmt.Errorf("%s ended with %s: %s", s.Name, s.Outcome, tail(log(s.Name)))
			}
		}
		return nil
	}
	if err := dead(c.control(), c.plan.log); err != nil {
		return err
	}
	for _, node := range c.Nodes() {
		err := dead(c.nodeControl(node), func(name string) string { return c.plan.log(node + "/" + name) })
		if err != nil {
			return err
		}
	}
	return nil
}

// tail returns the end of a log, for an error message.
func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return path + " ends:\n" + strings.Join(lines[max(0, len(lines)-15):], "\n")
}
