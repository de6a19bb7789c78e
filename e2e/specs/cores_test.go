//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/e2e/scenario"
)

// TestCoresAreHeldAndMeasured: a pod with a fifth of a GPU's cores that wants all of them. How exact a share is, is measured by
// `make bench-cores` on a clock that a busy machine does not disturb; here counts that it never has more, and that the node's agent
// sees which process of which pod it is.
func TestCoresAreHeldAndMeasured(t *testing.T) {
	const percent, ahead = 20, time.Second // a share may be ahead of itself by that
	s := begin(t, late)
	s.start("busy", s.template("gpu", request{name: "gpu", memory: "1Gi", cores: fmt.Sprint(percent)}),
		container("main", scenario.BusyProgram, "kernel=busy_2ms", "end_ms=3600000"))
	var before time.Duration
	s.eventually("the pod uses the GPU", func(context.Context) (bool, error) {
		var err error
		before, err = s.Busy(s.node, "busy")
		return before > 0, err
	})
	began := time.Now()
	claims, err := s.Client.ResourceV1().ResourceClaims(s.namespace).List(t.Context(), metav1.ListOptions{})
	s.must(err)
	agent := "/run/aliquot/shares/" + string(claims.Items[0].UID) + "/*/agent"
	s.eventually("the node's agent has measured the share", func(ctx context.Context) (bool, error) {
		output, err := s.OnNode(ctx, s.node, "sh", "-c", "od -An -v -tu4 -j24 -N8 "+agent)
		if err != nil {
			return false, err
		}
		var correction, used uint32
		_, err = fmt.Sscan(output, &correction, &used)
		return correction > 0 && used > 0, err
	})
	var busy time.Duration
	s.eventually("the pod has had a second of the GPU's time", func(context.Context) (bool, error) {
		now, err := s.Busy(s.node, "busy")
		busy = now - before
		return busy >= time.Second, err
	})
	elapsed := time.Since(began)
	if most := (elapsed + ahead) * percent / 100; busy > most+most/10 {
		t.Errorf("the GPU worked %v in %v for a pod with %d %% of its cores", busy, elapsed, percent)
	}
}
