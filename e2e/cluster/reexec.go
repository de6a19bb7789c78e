package cluster

import (
	"fmt"
	"os"
)

// The cluster's own processes run the program that called Start, again, and
// are told apart by the name they are given.
const (
	keeperName   = "aliquot-keeper"
	initName     = "aliquot-init"
	nodeName     = "aliquot-node"
	nodeInitName = "aliquot-node-init"
	kubeletName  = "aliquot-kubelet"

	self = "/proc/self/exe"
)

// reexecReady notes that Reexec was called; without it Start would run the
// test or tool itself anew, in place of a cluster.
var reexecReady bool

// Reexec must be the first thing that a program which uses this package does,
// in main or TestMain. In a process that the package started it does not
// return; in any other it does nothing.
func Reexec() {
	reexecReady = true
	var run func() error
	switch os.Args[0] {
	case keeperName:
		run = func() error { return runKeeper(os.Args[1]) }
	case initName:
		run = func() error { return runInit(os.Args[1]) }
	case nodeName:
		run = func() error { return enterNode(os.Args[1], os.Args[2]) }
	case nodeInitName:
		run = func() error { return runNode(os.Args[1], os.Args[2]) }
	case kubeletName:
		run = func() error { return runKubelet(os.Args[1:]) }
	default:
		return
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
	os.Exit(0)
}
