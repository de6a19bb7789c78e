// Package programs builds the programs of a Kubernetes cluster from source.
//
// Each folder beside this file is a nested module that pins one family of
// programs, so that go.sum guards them and the driver's own go.mod stays free
// of them. The package builds; it starts nothing.
package programs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A program is one binary of the cluster.
type program struct {
	name   string // file name of the binary
	pkg    string // Go package of its main function
	module string // folder of the nested module that pins it
	cgo    bool
	tags   string
}

// all lists the programs, the slowest module first: it is the one whose
// progress one wants to see.
var all = []program{
	{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", module: "kubernetes"},
	{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", module: "kubernetes"},
	{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", module: "kubernetes"},
	{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet", module: "kubernetes"},
	{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl", module: "kubernetes"},
	{name: "etcd", pkg: "go.etcd.io/etcd/server/v3", module: "etcd"},
	{name: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd", module: "containerd"},
	{name: "containerd-shim-runc-v2", pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", module: "containerd"},
	{name: "ctr", pkg: "github.com/containerd/containerd/v2/cmd/ctr", module: "containerd"},
	{name: "ptp", pkg: "github.com/containernetworking/plugins/plugins/main/ptp", module: "cni"},
	{name: "loopback", pkg: "github.com/containernetworking/plugins/plugins/main/loopback", module: "cni"},
	{name: "host-local", pkg: "github.com/containernetworking/plugins/plugins/ipam/host-local", module: "cni"},
	// kubelet's pods ask for a seccomp profile, and runc without it refuses them.
	{name: "runc", pkg: "github.com/opencontainers/runc", module: "runc", cgo: true, tags: "seccomp,netgo,osusergo"},
	{name: "helm", pkg: "helm.sh/helm/v4/cmd/helm", module: "helm"},
}

// modules returns the folders of the nested modules, each once, in order.
func modules() []string {
	var folders []string
	for _, p := range all {
		if len(folders) == 0 || folders[len(folders)-1] != p.module {
			folders = append(folders, p.module)
		}
	}
	return folders
}

// arguments returns those of `go build` but the output and the package.
// version is that of Kubernetes, as in go.mod.
func (p program) arguments(version string) []string {
	// As in the Makefile: what these programs share with the module around them is compiled once.
	args := []string{"build", "-trimpath", "-gcflags=all=-dwarf=false"}
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	ldflags := "-s -w"
	if p.module == "kubernetes" {
		ldflags += versionFlags(version)
	}
	return append(args, "-ldflags", ldflags)
}

// versionFlags stamps the version of Kubernetes: a build outside its own
// repository calls itself v0.0.0, which clients that compare versions refuse.
func versionFlags(version string) string {
	const at = " -X k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return at + "gitVersion=" + version + at + "gitMajor=" + parts[0] + at + "gitMinor=" + parts[1]
}

// requiredVersion reads the version of a module from a go.mod file.
func requiredVersion(gomod []byte, module string) (string, error) {
	lines := bufio.NewScanner(bytes.NewReader(gomod))
	for lines.Scan() {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("go.mod requires no %s", module)
}

// sourceFolder finds the folder of the nested modules: it lies in the tree of
// the module that the working directory belongs to.
func sourceFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		folder := filepath.Join(dir, "e2e", "cluster", "programs")
		if _, err := os.Stat(filepath.Join(folder, modules()[0], "go.mod")); err == nil {
			return folder, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no e2e/cluster/programs above the working directory: run inside a checkout of aliquot.dev/aliquot")
		}
	}
}
