package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"aliquot.dev/aliquot/internal/quota"
)

// counts are the metrics of a driver by name and labels; of durations, how many there were.
func counts(t *testing.T, d *Driver) map[string]float64 {
	t.Helper()
	families, err := d.Metrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "aliquot_")
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			if value != 0 {
				all[name] = value
			}
		}
	}
	return all
}

func TestMetricsAreAsPrometheusWantsThem(t *testing.T) {
	problems, err := testutil.GatherAndLint(newRig(t, "h100x8").start(t).Metrics())
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestMetricsTellWhatWasDoneAndWhatFailed(t *testing.T) {
	r := newRig(t, "h100x8")
	d := r.start(t)
	good, large := claimOf("good", share("gpu", "gpu-0", "s1", "60Gi", "0")), claimOf("large", share("gpu", "gpu-0", "s2", "60Gi", "0"))
	gone, absent := claimOf("gone", share("gpu", "gpu-1", "s3", "1Gi", "0")), claimOf("absent", whole("gpu", "gpu-9"))
	r.allocate(t, good, large, gone, absent)
	mustPrepare(t, d, good)
	mustPrepare(t, d, gone)
	if _, err := prepare(t, d, large); err == nil {
		t.Error("a GPU was given out twice")
	}
	if _, err := prepare(t, d, absent); err == nil {
		t.Error("a GPU was prepared that is not there")
	}
	r.forget(t, gone)
	if err := os.Mkdir(filepath.Join(r.config.Layout.SharesDir, "nobody-uid"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.reconcile(quiet(t))
	want := map[string]float64{
		"claim_prepare_duration_seconds ok":            2,
		"claim_prepare_duration_seconds overcommitted": 1,
		"claim_prepare_duration_seconds other":         1,
		"reconcile_actions_total unprepared":           1,
		"reconcile_actions_total orphan_removed":       1,
		"prepared_claims":                              1,
		"prepared_shares":                              1,
	}
	if diff := cmp.Diff(want, counts(t, d)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if err := unprepare(t, d, good); err != nil {
		t.Fatal(err)
	}
	if got := counts(t, d); got["claim_unprepare_duration_seconds ok"] != 1 || got["prepared_shares"] != 0 {
		t.Errorf("after it was unprepared: %v", got)
	}
}

func TestReasonsOfFailures(t *testing.T) {
	for want, err := range map[string]error{
		"ok":            nil,
		"hardware":      fmt.Errorf("%w: %w", errHardware, errors.New("no driver")),
		"overcommitted": fmt.Errorf("%w: more", quota.ErrOvercommitted),
		"mode":          fmt.Errorf("%w: both", quota.ErrTwoModes),
		"storage":       fmt.Errorf("write: %w", &os.PathError{Op: "open", Path: "/x", Err: syscall.ENOSPC}),
		"parameters":    fmt.Errorf("devices.config: %w", field.ErrorList{field.Required(field.NewPath("x"), "")}.ToAggregate()),
		"other":         errors.New("what is this"),
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
