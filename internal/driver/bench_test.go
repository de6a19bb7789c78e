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

	"golang.org/x/sys/unix"
)

const (
	benchP50Target = 5 * time.Millisecond
	benchP99Target = 10 * time.Millisecond
)

// BenchmarkPrepareUnprepare measures what the kubelet waits for when a pod starts and ends on a busy node: one claim
// prepared and unprepared beside 100 that stay, without the API server and without gRPC. Each file is synced before its
// rename. Once all files are on the file system of the temporary directory, and once share files and specs are in memory,
// as on a node, where only records are on a disk.
//
//	go test -run '^$' -bench PrepareUnprepare -benchtime 2000x ./internal/driver
func BenchmarkPrepareUnprepare(b *testing.B) {
	b.Run("disk", func(b *testing.B) {
		benchmarkPrepareUnprepare(b, newRig(b, "h100x8"), "100_shares")
	})
	b.Run("tmpfs", func(b *testing.B) {
		r, dir := newRig(b, "h100x8"), memoryDir(b)
		r.config.Layout.SpecDir, r.config.Layout.SharesDir = filepath.Join(dir, "cdi"), filepath.Join(dir, "shares")
		benchmarkPrepareUnprepare(b, r, "100_shares_run_dir_in_memory")
	})
}

func benchmarkPrepareUnprepare(b *testing.B, r *rig, name string) {
	d := r.start(b)
	for i := range 100 {
		mustPrepare(b, d, claimOf(fmt.Sprintf("held%d", i), share("gpu", fmt.Sprintf("gpu-%d", i%8), fmt.Sprintf("s%d", i), "5Gi", "5")))
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		claim := claimOf(fmt.Sprintf("c%d", i), share("gpu", fmt.Sprintf("gpu-%d", i%8), fmt.Sprintf("t%d", i), "5Gi", "5"))
		begin := time.Now()
		if _, err := prepare(b, d, claim); err != nil {
			b.Fatal(err)
		}
		if err := unprepare(b, d, claim); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	if len(took) < 100 {
		return // so few say nothing about a 99th percentile
	}
	slices.Sort(took)
	fmt.Printf("\nmachine: %s, %d cores, kernel %s\n", cpuModel(), runtime.NumCPU(), kernel())
	fmt.Printf("method: %d times prepare+unprepare of one claim beside 100 prepared ones on 8 H100, no API server, no gRPC, records on %s, share files and specs on %s, all synced\n",
		len(took), fileSystem(r.config.DataDir), fileSystem(r.config.Layout.SharesDir))
	report(b, "p50", name, took[len(took)/2], benchP50Target)
	report(b, "p99", name, took[len(took)*99/100], benchP99Target)
}

func report(b *testing.B, percentile, name string, took, target time.Duration) {
	verdict := "ok"
	if took > target {
		verdict = "short"
	}
	ms := float64(took) / float64(time.Millisecond)
	fmt.Printf("bench prepare_unprepare_%s_%s %.3f ms target %d %s\n", percentile, name, ms, target.Milliseconds(), verdict)
	b.ReportMetric(ms, percentile+"-ms")
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
