//go:build e2e

package specs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/scenario"
)

// The nodes, one kind of trouble each: specs on different nodes run at once, so that one's trouble is not another's.
const (
	sharing  = "h100x8"     // where nothing is broken
	late     = "mixed"      // where the driver comes after the plugin
	crashing = "t4x4-a"     // where the plugin is killed
	faulty   = "t4x4-b"     // where the driver and its GPUs fail
	badDisk  = "vgpu"       // where files are broken
	booting  = "odd-memory" // where the kubelet and the node are started anew
	hopper   = "h100x8-mig" // whose GPUs are partitioned when they are asked for
	ampere   = "a100x8"     // whose GPUs an administrator partitions
)

var nodes = []scenario.Node{
	{Name: sharing, Hardware: "h100x8"},
	{Name: late, Hardware: "mixed"},
	{Name: crashing, Hardware: "t4x4"},
	{Name: faulty, Hardware: "t4x4"},
	{Name: badDisk, Hardware: "vgpu"},
	{Name: booting, Hardware: "odd-memory"},
	{Name: hopper, Hardware: "h100x8"},
	{Name: ampere, Hardware: "a100x8"},
}

// onlyNodes keeps the cluster small where few specs are run, for long.
var onlyNodes = flag.String("nodes", "", "comma-separated names of the nodes to start; empty starts all")

func asked(node scenario.Node) bool {
	return *onlyNodes == "" || slices.Contains(strings.Split(*onlyNodes, ","), node.Name)
}

// settings are the chart's values here: faults are seen soon, an upgrade does not go node by node, and traces are collected.
var settings = []string{
	"--set", "kubeletPlugin.containers.plugin.env[0].name=DISCOVERY_INTERVAL",
	"--set", "kubeletPlugin.containers.plugin.env[0].value=2s",
	"--set", "kubeletPlugin.updateStrategy.rollingUpdate.maxSurge=100%",
	"--set-string", "tracing.endpoint=$(NODE_IP):" + fmt.Sprint(tracesPort),
}

// world is the one cluster of all specs, started by the first that asks.
var world = sync.OnceValues(func() (*scenario.World, error) {
	started = true
	var some []scenario.Node
	for _, node := range nodes {
		if asked(node) {
			some = append(some, node)
		}
	}
	w, err := scenario.Start(context.Background(), os.Stderr, some, settings...)
	if err != nil {
		return w, err
	}
	return w, spans.listen(w.Cluster)
})

var started bool

func TestMain(m *testing.M) {
	cluster.Reexec()
	flag.Parse()
	// Specs wait more than they compute; what runs at once is decided by the nodes they take.
	if err := flag.Set("test.parallel", fmt.Sprint(2*len(nodes))); err != nil {
		panic(err)
	}
	code := m.Run()
	if started {
		code = max(code, finish())
	}
	os.Exit(code)
}

// finish checks what all specs left, and stops the cluster.
func finish() int {
	w, err := world()
	if err != nil {
		return 1 // the specs told
	}
	left, err := w.Leftovers(context.Background())
	if err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "FAIL: the specs left behind:", left, err)
	}
	unused, rightsErr := rightsUnused(context.Background(), w)
	if complete := flag.Lookup("test.run").Value.String() == "."; rightsErr != nil || complete && len(unused) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: rights that no spec used: %v\n%s\n", rightsErr, strings.Join(unused, "\n"))
		err = errors.Join(err, rightsErr, errors.New("unused rights"))
	} else if len(unused) > 0 {
		fmt.Fprintf(os.Stderr, "rights that these specs did not use:\n%s\n", strings.Join(unused, "\n"))
	}
	if stop := w.Stop(); stop != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", stop)
		return 1
	}
	if err != nil || len(left) > 0 {
		return 1
	}
	return 0
}
