// Command gpucheck measures on a real GPU how close the preload library and the node's agent hold tenants to their shares
// of its time. It makes the share directories as a container would have them, runs the agent's loop over them, and lets
// tenants run beside each other that say how long the GPU worked for each. It needs no cluster, and neither Go nor a compiler
// where it runs; what else is checked on such a machine is in check.sh beside it.
//
//	gpucheck [-library L] [-spin S] [-set short|all] [-focus R]
//	gpucheck -share DIR -memory MiB [-context MiB] [-cores PERCENT]	only makes a share: DIR/aliquot-shares
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/nvml"
)

// options are what the command line says.
type options struct {
	library, spin, set string
	focus              *regexp.Regexp
	warmUp, measured   time.Duration

	share                  string
	memory, context, cores int
}

func main() {
	var o options
	beside := "."
	if path, err := os.Executable(); err == nil {
		beside = filepath.Dir(path)
	}
	flag.StringVar(&o.library, "library", filepath.Join(beside, "libaliquot.so"), "the library, compiled with SHARES_DIR="+sharesDir)
	flag.StringVar(&o.spin, "spin", filepath.Join(beside, "spin"), "the tenant")
	flag.StringVar(&o.set, "set", "short", "short, for some minutes, or all")
	focus := flag.String("focus", ".", "a regular expression: only mixes whose name matches")
	flag.DurationVar(&o.warmUp, "warmup", 10*time.Second, "before what is measured")
	flag.DurationVar(&o.measured, "measured", 30*time.Second, "how long is measured")
	flag.StringVar(&o.share, "share", "", "make a share for programs that run in this folder, and end")
	flag.IntVar(&o.memory, "memory", 4096, "MiB of that share")
	flag.IntVar(&o.context, "context", 0, "MiB that a context is charged there")
	flag.IntVar(&o.cores, "cores", 100, "percent of the GPU's time of that share")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if o.focus, err = regexp.Compile(*focus); err == nil {
		err = check(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		os.Exit(1)
	}
}

func check(ctx context.Context, o options) error {
	node, done, err := openNode()
	if err != nil {
		return err
	}
	defer done()
	device, err := firstGPU(node)
	if err != nil {
		return err
	}
	if o.share != "" {
		quota := cdi.Quota{MemoryBytes: uint64(o.memory) << 20, CorePercent: o.cores, ContextMiB: uint32(o.context)}
		_, err := makeShare(o.share, device.UUID, quota)
		return err
	}
	return cores(ctx, o, node, device)
}

func cores(ctx context.Context, o options, node *nvml.Node, device gpu.Device) error {
	mixes := short
	if o.set == "all" {
		mixes = all()
	}
	var chosen []mix
	for _, m := range mixes {
		if o.focus.MatchString(m.name()) {
			chosen = append(chosen, m)
		}
	}
	fmt.Printf("GPU: %s, %s, driver %s, CUDA %s, %s\n", device.ProductName, device.UUID, device.DriverVersion, device.CUDADriverVersion,
		time.Now().UTC().Format(time.DateOnly))
	fmt.Printf("method: each mix runs %v, then %v are measured by the kernels that ended; demand is the workload alone, without the library\n", o.warmUp, o.measured)
	b, err := newBench(ctx, o, node.Monitor(), device)
	if err != nil {
		return err
	}
	defer b.close()
	results, err := b.table(ctx, chosen)
	report(os.Stdout, "gpu_cores", results)
	fmt.Printf("\na context and the tenant's code take %d MiB (0: not measured)\n", b.contextMiB)
	if err != nil {
		return err
	}
	return b.drift(ctx)
}
