//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"aliquot.dev/aliquot/e2e/workload"
)

// podStore follows the pods of a namespace, so that nobody need ask, however often the API server dies.
type podStore struct {
	store      cache.Store
	controller cache.Controller
}

// newPodStore makes one that tells of pods whose program did not get what it was to get.
func newPodStore(s *spec, fail func(error)) *podStore {
	pods := s.Client.CoreV1().Pods(s.namespace)
	look := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			if err := expectation(pod); err != nil {
				fail(err)
			}
		}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return pods.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
				return pods.Watch(ctx, options)
			},
		},
		ObjectType: &corev1.Pod{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, now any) { look(now) }},
	})
	return &podStore{store: store, controller: controller}
}

func (p *podStore) watch(ctx context.Context, group *sync.WaitGroup) error {
	group.Go(func() { p.controller.RunWithContext(ctx) })
	return until(ctx, "the pods are watched", func(context.Context) (bool, error) { return p.controller.HasSynced(), nil })
}

// pod is nil if there is none.
func (p *podStore) pod(namespace, name string) *corev1.Pod {
	object, exists, err := p.store.GetByKey(namespace + "/" + name)
	if err != nil || !exists {
		return nil
	}
	return object.(*corev1.Pod)
}

// expectation says what a container of the pod got that it should not have got, now or in its last life.
func expectation(pod *corev1.Pod) error {
	for _, status := range pod.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{status.State, status.LastTerminationState} {
			if ended := state.Terminated; ended != nil && ended.ExitCode == workload.Unexpected {
				return fmt.Errorf("container %s of pod %s on node %s did not get its share: %s\n%s\nit is %q",
					status.Name, pod.Name, pod.Spec.NodeName, ended.Message, ended.FinishedAt, pod.Spec.Containers[0].Command)
			}
		}
	}
	return nil
}
