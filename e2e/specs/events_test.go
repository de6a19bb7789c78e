//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// events are what was said of an object, newest last.
func (s *spec) events(ctx context.Context, namespace, kind, name string) ([]string, error) {
	selector := "involvedObject.kind=" + kind + ",involvedObject.name=" + name
	if kind == "Node" {
		selector += ",involvedObject.uid=" + name // by which kubectl describe finds them
	}
	list, err := s.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, err
	}
	var events []string
	for _, e := range list.Items {
		events = append(events, e.Reason+": "+e.Message)
	}
	return events, nil
}

// told waits until an Event of the pod says all of the given words.
func (s *spec) told(pod string, words ...string) {
	s.Helper()
	s.eventOf(s.namespace, "Pod", pod, words...)
}

// nodeTold waits until an Event of the spec's node says all of the given words.
func (s *spec) nodeTold(words ...string) {
	s.Helper()
	s.eventOf(metav1.NamespaceDefault, "Node", s.node, words...)
}

func (s *spec) eventOf(namespace, kind, name string, words ...string) {
	s.Helper()
	s.eventually(fmt.Sprintf("an Event of %s %s says %q", kind, name, words), func(ctx context.Context) (bool, error) {
		events, err := s.events(ctx, namespace, kind, name)
		if err != nil {
			return false, err
		}
		for _, event := range events {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(event, word) }) {
				return true, nil
			}
		}
		return false, fmt.Errorf("its Events: %s", strings.Join(events, "\n"))
	})
}
