package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aliquot.dev/aliquot/internal/gpu"
)

// idle is hardware on which nothing runs.
type idle struct{ released bool }

func (*idle) Processes(string) ([]gpu.Process, error)               { return nil, nil }
func (*idle) Utilization(string, uint64) ([]gpu.Utilization, error) { return nil, nil }
func (i *idle) Release()                                            { i.released = true }

// stub is a tenant that says in which environment it ran: its share's percent where it is limited, else 80.
const stub = `#!/bin/sh
echo "$* preload=$LD_PRELOAD visible=$CUDA_VISIBLE_DEVICES" >>"$LOG"
[ "$1" = calibrate ] && echo 100 && exit
if [ "$LD_PRELOAD" ]; then
	sed -n 's/^core_percent //p' aliquot-shares/*/quota
else
	echo 80
fi
`

func newTestBench(t *testing.T, script string) (b *bench, log func() string) {
	t.Helper()
	dir := t.TempDir()
	o := options{spin: filepath.Join(dir, "spin"), library: filepath.Join(dir, "empty.so"), warmUp: time.Second, measured: time.Second}
	t.Setenv("LOG", filepath.Join(dir, "log"))
	if err := os.WriteFile(o.spin, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.library, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := newBench(t.Context(), o, &idle{}, gpu.Device{UUID: uuid, ProductName: "a GPU"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b, func() string {
		text, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestTenantsRunInTheirShares(t *testing.T) {
	b, log := newTestBench(t, stub)
	if b.rate != 100 {
		t.Errorf("calibrated to %v", b.rate)
	}
	results, err := b.run(t.Context(), mix{{middleAsync, 30}, {shortSync, 90}})
	if err != nil {
		t.Fatal(err)
	}
	want := []result{{share: 30, demand: 80, used: 30}, {share: 90, demand: 80, used: 90}}
	for i := range want {
		if results[i] != want[i] {
			t.Errorf("tenant %d: %+v, want %+v", i, results[i], want[i])
		}
	}
	if got := fmt.Sprintf("%+.0f %+.0f", results[0].missed(), results[1].missed()); got != "+0 +10" {
		t.Errorf("missed by %s: a tenant cannot be blamed for what it does not ask for", got)
	}
	lines := strings.Split(strings.TrimSpace(log()), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d processes, want a calibration, two demands and two tenants:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	limited := 0
	for _, line := range lines {
		if !strings.HasSuffix(line, "visible="+uuid) {
			t.Errorf("not held to one GPU: %s", line)
		}
		if strings.Contains(line, "preload="+b.options.library) {
			limited++
		}
	}
	if limited != 2 {
		t.Errorf("%d had the library, want 2", limited)
	}
}

func TestTenantsMeasureOneWindow(t *testing.T) {
	b, log := newTestBench(t, stub)
	b.demands[longAsync.name] = 100
	if _, err := b.run(t.Context(), mix{{longAsync, 50}, {longAsync, 50}}); err != nil {
		t.Fatal(err)
	}
	var windows []string
	for _, line := range strings.Split(strings.TrimSpace(log()), "\n")[1:] {
		fields := strings.Fields(line)
		windows = append(windows, strings.Join(fields[:5], " "))
		var from, until float64
		if _, err := fmt.Sscan(fields[3]+" "+fields[4], &from, &until); err != nil || until-from < 0.999 || until-from > 1.001 {
			t.Errorf("measures from %s until %s, want a second", fields[3], fields[4])
		}
	}
	if len(windows) != 2 || windows[0] != windows[1] || !strings.HasPrefix(windows[0], "100 100000 0 ") {
		t.Errorf("tenants measure %q", windows)
	}
}

func TestTenantThatFails(t *testing.T) {
	b, _ := newTestBench(t, `#!/bin/sh
[ "$1" = calibrate ] && echo 100 && exit
[ "$LD_PRELOAD" ] && echo no such GPU >&2 && exit 1
echo 80
`)
	results, err := b.table(t.Context(), []mix{{{longAsync, 50}}})
	if err == nil || !strings.Contains(err.Error(), "no such GPU") || len(results) != 0 {
		t.Errorf("results %v, error %v", results, err)
	}
}

func TestCalibrationMustMeanSomething(t *testing.T) {
	for _, said := range []string{"0", "-1", "nan", "inf", "nothing"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "spin")
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho "+said+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := newBench(t.Context(), options{spin: path, library: path}, &idle{}, gpu.Device{UUID: uuid}); err == nil {
			t.Errorf("%s turns in a µs are taken", said)
		}
	}
}

func TestShortHasEverything(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range short {
		total := 0
		for _, tenant := range m {
			total += tenant.percent
			seen[tenant.workload.name] = true
		}
		seen[fmt.Sprint(len(m), m[0].percent, total)] = true
		if total > 100 {
			t.Errorf("%s is more than a GPU", m.name())
		}
	}
	want := []string{"1 25 25", "1 50 50", "2 30 100", "2 50 100", "2 10 100"}
	for _, w := range workloads {
		want = append(want, w.name)
	}
	for _, name := range want {
		if !seen[name] {
			t.Errorf("nothing has %s", name)
		}
	}
}

func TestAllHasEachWorkloadInEachShare(t *testing.T) {
	seen := map[string]int{}
	for _, m := range all() {
		if seen["mix "+m.name()]++; seen["mix "+m.name()] > 1 {
			t.Errorf("%s is there twice", m.name())
		}
		for _, tenant := range m {
			seen[fmt.Sprint(tenant.workload.name, tenant.percent)]++
		}
	}
	for _, w := range workloads {
		for _, percent := range []int{10, 25, 30, 50, 70, 90} {
			if seen[fmt.Sprint(w.name, percent)] == 0 {
				t.Errorf("%s is never held to %d percent", w.name, percent)
			}
		}
	}
}

func TestReport(t *testing.T) {
	var out strings.Builder
	report(&out, "gpu_cores", []result{{share: 50, demand: 100, used: 49}, {share: 90, demand: 80, used: 87}})
	const want = `
2 shares: mean absolute error 4.00 pp, worst 7.00 pp
bench gpu_cores_mean_abs_error 4.00 pp target 2 short
bench gpu_cores_worst_abs_error 7.00 pp target 5 short
`
	if out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
	out.Reset()
	if verdict(&out, "drift", 1, 1); out.String() != "bench drift 1.00 pp target 1 ok\n" {
		t.Errorf("got %s", out.String())
	}
	out.Reset()
	if report(&out, "gpu_cores", nil); out.String() != "" {
		t.Errorf("nothing measured, but: %s", out.String())
	}
}

func TestRowOfTheTable(t *testing.T) {
	r := result{mix: "2.7 ms @30", share: 30, demand: 99.96, used: 28.04, k: 1.017}
	if got, want := r.String(), "| 2.7 ms @30 | 30 | 100.0 | 28.0 | -2.0 | 1.02 |"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
