package driver

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
)

const (
	benchShares    = 1000
	benchP50Target = 2 * time.Millisecond
	benchP99Target = 10 * time.Millisecond
)

// BenchmarkPrepareUnprepare measures what the kubelet waits for when a pod starts and ends on a busy node: one claim
// prepared and unprepared beside 1,000 that stay, without the API server and without gRPC. Share files and specs are
// synced before their rename. Once all files are on the file system of the temporary directory, and once share files and specs are in memory,
// as on a node, where only records are on a disk. What the same files take when nothing but them is written tells how much
// of it is the file system's.
//
//	go test -run '^$' -bench PrepareUnprepare -benchtime 2000x ./internal/driver
func BenchmarkPrepareUnprepare(b *testing.B) {
	b.Run("disk", func(b *testing.B) {
		benchmarkPrepareUnprepare(b, newRig(b, "h100x8"), "1000_shares")
	})
	b.Run("tmpfs", func(b *testing.B) {
		r, dir := newRig(b, "h100x8"), memoryDir(b)
		r.config.Layout.SpecDir, r.config.Layout.SharesDir = filepath.Join(dir, "cdi"), filepath.Join(dir, "shares")
		benchmarkPrepareUnprepare(b, r, "1000_shares_run_dir_in_memory")
	})
}

func benchmarkPrepareUnprepare(b *testing.B, r *rig, name string) {
	r.config.Processes, r.config.ContextMiB = &fakeProcesses{}, 512
	d := r.start(b)
	for i := range benchShares {
		mustPrepare(b, d, benchClaim("held", i))
	}
	files := filesOf(b, d, benchClaim("held", 0))
	var prepared, unprepared, bare laps
	for i := 0; b.Loop(); i++ {
		claim := benchClaim("new", i)
		prepared.add(b, func() error { _, err := prepare(b, d, claim); return err })
		unprepared.add(b, func() error { return unprepare(b, d, claim) })
		bare.add(b, func() error { return rewrite(files, d.records.dir) })
	}
	if len(prepared) < 100 {
		return // so few say nothing about a 99th percentile
	}
	fmt.Printf("\nmachine: %s, %d cores, kernel %s, load %s\n", cpuModel(), runtime.NumCPU(), kernel(), load())
	fmt.Printf("method: %d times prepare, then unprepare of one claim beside %d prepared ones on 8 H100, no API server, no gRPC, records on %s, share files and specs on %s, and those synced\n",
		len(prepared), benchShares, fileSystem(r.config.DataDir), fileSystem(r.config.Layout.SharesDir))
	fmt.Printf("unprepare: p50 %.3f ms, p99 %.3f ms; the files of a claim alone, written, synced but for the record, and renamed: p50 %.3f ms, p99 %.3f ms\n",
		unprepared.quantile(0.5), unprepared.quantile(0.99), bare.quantile(0.5), bare.quantile(0.99))
	report(b, "p50", name, prepared.quantile(0.5), benchP50Target)
	report(b, "p99", name, prepared.quantile(0.99), benchP99Target)
}

// benchClaim has a share without cores of its own: what it may use is worked out from all others of its GPU.
func benchClaim(name string, i int) *resourceapi.ResourceClaim {
	return claimOf(fmt.Sprintf("%s%d", name, i), share("gpu", fmt.Sprintf("gpu-%d", i%8), fmt.Sprintf("%s-share%d", name, i), "512Mi", "0"))
}

// laps are how long each repetition of a step took.
type laps []time.Duration

func (l *laps) add(b *testing.B, step func() error) {
	begin := time.Now()
	if err := step(); err != nil {
		b.Fatal(err)
	}
	*l = append(*l, time.Since(begin))
}

// quantile is in milliseconds.
func (l laps) quantile(part float64) float64 {
	sorted := slices.Sorted(slices.Values(l))
	return float64(sorted[int(part*float64(len(sorted)))]) / float64(time.Millisecond)
}

// filesOf are the files that a prepare makes.
func filesOf(b *testing.B, d *Driver, claim *resourceapi.ResourceClaim) (files []string) {
	for _, pattern := range []string{d.records.path(string(claim.UID)), d.config.Layout.SpecDir + "/*" + string(claim.UID) + "*", d.config.Layout.SharesDir + "/" + string(claim.UID) + "/*/*"} {
		matches, err := filepath.Glob(pattern)
		if err != nil || len(matches) == 0 {
			b.Fatalf("no file matches %s: %v", pattern, err)
		}
		files = append(files, matches...)
	}
	return files
}

// rewrite writes files of the same content beside the given ones as prepare writes them, records among them, and removes them.
func rewrite(files []string, records string) error {
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		dir := filepath.Dir(file)
		bare := filepath.Join(dir, "bare")
		if dir == records {
			err = replace(bare, content)
		} else {
			err = renameio.WriteFile(bare, content, 0o600, renameio.WithTempDir(dir))
		}
		if err != nil {
			return err
		}
		if err := os.Remove(bare); err != nil {
			return err
		}
	}
	return nil
}

func report(b *testing.B, percentile, name string, ms float64, target time.Duration) {
	verdict := "ok"
	if ms > target.Seconds()*1000 {
		verdict = "short"
	}
	fmt.Printf("bench prepare_%s_%s %.3f ms target %d %s\n", percentile, name, ms, target.Milliseconds(), verdict)
	b.ReportMetric(ms, percentile+"-ms")
}

// load is how many processes ran or wanted to, over the last minute.
func load() string {
	averages, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(averages), " ")
	return first
}

func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, model, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return "unknown CPU"
}

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// fileSystem names the kind of file system that dir is on.
func fileSystem(dir string) string {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return "unknown"
	}
	switch stat.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return fmt.Sprintf("type %#x", stat.Type)
}
