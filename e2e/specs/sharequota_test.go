//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const quota = `
apiVersion: gpu.aliquot.dev/v1alpha1
kind: ShareQuota
metadata:
  name: team
spec:
  largest: {memory: 4Gi}
  deviceClasses: [share.gpu.aliquot.dev]
  hard: {memory: 10Gi}
`

// It runs alone: where the API server takes longer for a reservation than a webhook may, claims are let in uncounted.
func TestNamespaceStaysWithinItsQuota(t *testing.T) {
	s := alone(t, sharing)
	if a := s.applied(quota); !a.ok {
		t.Fatal(a.output)
	}
	s.eventually("the quota is known", func(ctx context.Context) (bool, error) {
		return strings.Contains(fmt.Sprint(s.create(ctx, "three", true, "4Gi", "4Gi", "4Gi")), `ShareQuota "team" allows 10Gi`), nil
	})
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"larger than the largest": {s.create(t.Context(), "large", false, "5Gi"), "4Gi"},
		"a whole GPU":             {s.create(t.Context(), "whole", false, ""), "4Gi"},
		"more than all":           {s.create(t.Context(), "all", false, "4Gi", "4Gi", "4Gi"), `ShareQuota "team" allows 10Gi`},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want it refused with %q", what, c.err, c.want)
		}
	}

	if stored := s.rush(20); stored != 10 {
		t.Errorf("%d of 20 claims at once were stored, want the 10 that fit", stored)
	}
	s.uses("10Gi")
	s.kubectl("delete", "resourceclaim", "--namespace", s.namespace, "--selector", "spec=rush")
	s.uses("0")
	s.start("within", s.template("within", request{name: "gpu", memory: "3Gi"}), cuda("main"))
	s.held("within", "3Gi")
	s.uses("3Gi")

	// A quota that is lowered harms nobody, and says so each time.
	for range 2 {
		s.limit("2Gi", metav1.ConditionTrue)
		s.limit("10Gi", metav1.ConditionFalse)
	}
	s.eventOf(s.namespace, "ShareQuota", "team", "Exceeded: namespace "+s.namespace+" uses 3Gi of GPU memory")
	s.stillHeld("within", "3Gi")
}

// limit changes the quota and waits until it says whether there is more than it allows.
func (s *spec) limit(memory string, exceeded metav1.ConditionStatus) {
	s.Helper()
	s.kubectl("patch", "sharequota", "--namespace", s.namespace, "team", "--type", "merge", "--patch", fmt.Sprintf(`{"spec": {"hard": {"memory": %q}}}`, memory))
	s.kubectl("wait", "sharequota", "--namespace", s.namespace, "team", "--for", "condition=Exceeded="+string(exceeded), "--timeout", "1m")
}

// rush creates claims of 1Gi at once and says how many were stored.
func (s *spec) rush(claims int) (stored int) {
	s.Helper()
	errs := make([]error, claims)
	var all sync.WaitGroup
	for i := range claims {
		all.Go(func() { errs[i] = s.create(s.Context(), fmt.Sprintf("rush-%d", i), false, "1Gi") })
	}
	all.Wait()
	for _, err := range errs {
		switch {
		case err == nil:
			stored++
		case !strings.Contains(err.Error(), `ShareQuota "team" allows 10Gi`):
			s.Errorf("refused for another reason: %v", err)
		}
	}
	return stored
}

// create makes a claim with a request for each amount of memory; an empty one asks for none.
func (s *spec) create(ctx context.Context, name string, dryRun bool, memory ...string) error {
	var requests []request
	for i, amount := range memory {
		requests = append(requests, request{name: fmt.Sprintf("gpu-%d", i), memory: amount})
	}
	var options metav1.CreateOptions
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err := s.Client.ResourceV1().ResourceClaims(s.namespace).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"spec": "rush"}}, Spec: claimSpec(requests),
	}, options)
	return err
}

// uses waits until the namespace is shown to use so much memory.
func (s *spec) uses(memory string) {
	s.Helper()
	s.eventually("the namespace uses "+memory, func(ctx context.Context) (bool, error) {
		output, err := s.Kubectl(ctx, "get", "sharequota", "--namespace", s.namespace, "team", "--no-headers")
		fields := strings.Fields(output)
		return err == nil && len(fields) > 2 && fields[1] == memory && fields[2] == "10Gi", err
	})
}
