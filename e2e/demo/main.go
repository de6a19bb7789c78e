// Command demo shows on a machine without a GPU what Aliquot does: it starts an embedded Kubernetes cluster with
// simulated GPUs, installs the chart, lets pods share GPUs and checks that each is held to what it was given. What a pod
// may not have is judged by the simulated hardware's own ledger, not by the library that enforces it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/scenario"
)

func main() {
	cluster.Reexec()
	keep := flag.Bool("keep", false, "leave the cluster running until interrupted, to look around")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// errNotHeld is returned when a check failed; the table says which.
var errNotHeld = errors.New("not all held")

func run(ctx context.Context, keep bool) error {
	if err := preflight(); err != nil {
		return err
	}
	w, err := scenario.Start(ctx, os.Stderr, []scenario.Node{
		{Name: "node-1", Hardware: "h100x8", Labels: map[string]string{"demo": "h100x8"}},
		{Name: "node-2", Hardware: "mixed"},
	})
	if err != nil {
		return err
	}
	rows, err := check(ctx, w)
	if err == nil && keep {
		fmt.Printf("\nThe cluster runs until you interrupt this: export KUBECONFIG=%s PATH=%s:$PATH\n", w.Kubeconfig, w.Programs())
		<-ctx.Done()
	}
	if err := errors.Join(err, w.Stop()); err != nil {
		return err
	}
	if held := report(os.Stdout, rows); held < len(rows) {
		return errNotHeld
	}
	return nil
}

// needDisk is what a cold run writes: module and build caches, programs, images. In bytes.
const needDisk = 12 << 30

// preflight says what the demo needs before it starts anything.
func preflight() error {
	fmt.Fprintln(os.Stderr, "The demo needs Linux, root (it makes namespaces, mounts and device nodes), Go, gcc and 12 GiB of disk when run for the first time. It touches nothing outside its own namespaces and directories.")
	if runtime.GOOS != "linux" {
		return fmt.Errorf("this is %s: run it on Linux, for instance in a virtual machine", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		return errors.New("not run as root: try `sudo make demo`")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the cache directory: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(existing(cache), &fs); err == nil && fs.Bavail*uint64(fs.Bsize) < needDisk/4 {
		return fmt.Errorf("%s has %d MiB free: free some, or set XDG_CACHE_HOME to a larger disk", cache, fs.Bavail*uint64(fs.Bsize)>>20)
	}
	return nil
}

// existing is path or, if it does not exist, the nearest directory above that does.
func existing(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		path = parent(path)
	}
	return path
}
