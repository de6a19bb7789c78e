//go:build e2e

package specs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// startLoad starts those who make pods: some until the trouble is over, and on each node some that have one pod all the
// while.
func (c *chaos) startLoad(trouble, ctx context.Context, seed uint64, load *sync.WaitGroup) {
	run := func(name string, t *tenant) bool {
		err := t.live(ctx, c)
		if err != nil {
			c.fail(fmt.Errorf("%s: %w\n%s", name, err, c.explain(t)))
		}
		return err == nil
	}
	for i := range chaosNodes {
		resident := c.resident(chaosNodes[i], fmt.Sprintf("resident-%d", i))
		load.Go(func() { run("resident", resident) })
	}
	for w := range *chaosWriters {
		random := rand.New(rand.NewPCG(seed, uint64(1+w)))
		load.Go(func() {
			for n := 0; trouble.Err() == nil; n++ {
				node := chaosNodes[0] // more often, since it has more to give
				if random.IntN(3) == 0 {
					node = chaosNodes[1]
				}
				if !run("writer", c.anyTenant(random, node, fmt.Sprintf("w%d-%d", w, n))) {
					return
				}
			}
		})
	}
}

// tenant is pods that come and go together, and what they need.
type tenant struct {
	pods      []*corev1.Pod
	templates map[string][]request
	claims    map[string][]request
	lasting   bool          // its pods run until they are deleted; others until they are through
	stay      time.Duration // for how long one that lasts is left alone; forever: until nothing is broken any more
	forced    bool          // its pods are deleted without waiting for their end
}

const forever = time.Hour

// live makes a tenant's pods, waits until they did what they are for, and removes them.
func (t *tenant) live(ctx context.Context, c *chaos) error {
	if err := t.create(ctx, c); err != nil {
		return err
	}
	c.made.Add(int64(len(t.pods)))
	if err := t.wellDone(ctx, c); err != nil {
		return err
	}
	if t.lasting {
		select {
		case <-ctx.Done():
		case <-c.calm:
		case <-time.After(t.stay): // nothing that follows depends on how long it was
		}
		if err := t.wellDone(ctx, c); err != nil {
			return err
		}
	}
	if err := t.remove(ctx, c); err != nil {
		return err
	}
	c.done.Add(int64(len(t.pods)))
	return nil
}

func (t *tenant) create(ctx context.Context, c *chaos) error {
	api := c.Client.ResourceV1()
	for name, requests := range t.templates {
		object := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(requests)}}
		if err := insist(ctx, "template "+name+" is made", func(ctx context.Context) error {
			_, err := api.ResourceClaimTemplates(c.namespace).Create(ctx, object, metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	for name, requests := range t.claims {
		object := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: claimSpec(requests)}
		if err := insist(ctx, "claim "+name+" is made", func(ctx context.Context) error {
			_, err := api.ResourceClaims(c.namespace).Create(ctx, object, metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	for _, pod := range t.pods {
		if err := insist(ctx, "pod "+pod.Name+" is made", func(ctx context.Context) error {
			_, err := c.Client.CoreV1().Pods(c.namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// wellDone waits until pods that last hold all that they may have, and others have ended with success.
func (t *tenant) wellDone(ctx context.Context, c *chaos) error {
	var names []string
	for _, pod := range t.pods {
		names = append(names, pod.Name)
	}
	return until(ctx, fmt.Sprintf("%q do what they are for", names), func(context.Context) (bool, error) {
		for _, name := range names {
			pod := c.pods.pod(c.namespace, name)
			if pod == nil {
				return false, fmt.Errorf("pod %s is not there", name)
			}
			if want := t.phase(); pod.Status.Phase != want {
				return false, fmt.Errorf("pod %s is %s, not %s", name, pod.Status.Phase, want)
			}
		}
		if !t.lasting {
			return true, nil
		}
		return c.holds(names)
	})
}

func (t *tenant) phase() corev1.PodPhase {
	if t.lasting {
		return corev1.PodRunning
	}
	return corev1.PodSucceeded
}

func (t *tenant) remove(ctx context.Context, c *chaos) error {
	var options metav1.DeleteOptions
	if t.forced {
		options.GracePeriodSeconds = ptr.To(int64(0))
	}
	for _, pod := range t.pods {
		if err := insist(ctx, "pod "+pod.Name+" is deleted", func(ctx context.Context) error {
			return c.Client.CoreV1().Pods(c.namespace).Delete(ctx, pod.Name, options)
		}); err != nil {
			return err
		}
	}
	for _, pod := range t.pods {
		if err := until(ctx, "pod "+pod.Name+" is gone", func(context.Context) (bool, error) {
			return c.pods.pod(c.namespace, pod.Name) == nil, nil
		}); err != nil {
			return err
		}
	}
	for name := range t.templates {
		if err := insist(ctx, "template "+name+" is deleted", func(ctx context.Context) error {
			return c.Client.ResourceV1().ResourceClaimTemplates(c.namespace).Delete(ctx, name, metav1.DeleteOptions{})
		}); err != nil {
			return err
		}
	}
	for name := range t.claims {
		if err := insist(ctx, "claim "+name+" is deleted", func(ctx context.Context) error {
			return c.Client.ResourceV1().ResourceClaims(c.namespace).Delete(ctx, name, metav1.DeleteOptions{})
		}); err != nil {
			return err
		}
	}
	return nil
}

// insist does something until the API server took it. What an earlier try has done, although its answer was lost, is done.
func insist(ctx context.Context, what string, do func(context.Context) error) error {
	return until(ctx, what, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		err := do(ctx)
		if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			err = nil
		}
		return err == nil, err
	})
}

// explain tells of a tenant that did not do what it is for.
func (c *chaos) explain(t *tenant) string {
	var told []error
	for _, pod := range t.pods {
		told = append(told, errors.New(c.Explain(c.Context(), c.namespace, pod.Name)))
	}
	return errors.Join(told...).Error()
}
