// Package release puts this source tree's Aliquot onto an embedded cluster, as an admin would: an image of the plugin,
// and the chart installed by helm. It builds no program; `make build` does.
package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/cluster/image"
)

// Where the chart is installed.
const (
	Name      = "aliquot"
	Namespace = "aliquot-system"
	DaemonSet = "aliquot-kubelet-plugin"
	// Controller is the Deployment, and the Service in front of its webhooks.
	Controller = "aliquot-controller"
	// Certificates is the Secret of the webhooks' certificates.
	Certificates = "aliquot-controller-certificates"
)

const (
	repository = "aliquot.test/aliquot"
	tag        = "built"
)

// Image is the plugin's image from the programs in bin/, laid out as deployments/docker/Dockerfile lays it out.
func Image(ctx context.Context) (image.Image, error) {
	top, err := sourceTree(ctx)
	if err != nil {
		return image.Image{}, err
	}
	built := func(name string) string { return filepath.Join(top, "bin", name) }
	for _, name := range []string{"aliquot-kubelet-plugin", "aliquot-controller", "nvidia-cdi-hook", "libaliquot.so"} {
		if _, err := os.Stat(built(name)); err != nil {
			return image.Image{}, fmt.Errorf("find what `make build` makes: %w", err)
		}
	}
	root := image.NewTree().
		Program("/usr/bin/aliquot-kubelet-plugin", built("aliquot-kubelet-plugin")).
		Program("/usr/bin/aliquot-controller", built("aliquot-controller")).
		Program("/usr/bin/nvidia-cdi-hook", built("nvidia-cdi-hook")).
		File("/usr/lib/aliquot/libaliquot.so", built("libaliquot.so"))
	return image.Image{Name: repository + ":" + tag, Root: root}, nil
}

// Install gives the plugin's image to the nodes and installs the chart, with further helm arguments if any, and waits
// until the plugin serves on every node that has GPUs.
func Install(ctx context.Context, c *cluster.Cluster, args ...string) error {
	i, err := Image(ctx)
	if err != nil {
		return err
	}
	if err := c.AddImage(ctx, i); err != nil {
		return err
	}
	return Upgrade(ctx, c, args...)
}

// Upgrade installs or upgrades to the chart of this source tree.
func Upgrade(ctx context.Context, c *cluster.Cluster, args ...string) error {
	top, err := sourceTree(ctx)
	if err != nil {
		return err
	}
	return UpgradeTo(ctx, c, filepath.Join(top, "deployments", "helm", "aliquot"), args...)
}

// UpgradeTo installs or upgrades to a chart in some folder, with the image of this source tree.
func UpgradeTo(ctx context.Context, c *cluster.Cluster, chart string, args ...string) error {
	_, err := c.Helm(ctx, append([]string{
		"upgrade", "--install", Name, chart,
		"--namespace", Namespace, "--create-namespace", "--wait", "--timeout", "2m",
		"--set", "nvidiaDriverRoot=/run/nvidia/driver",
		"--set", "contextReserve=0", // what simulated contexts cost
		// The container toolkit looks for the capabilities of MIG in its own /proc, where
		// a driver in the kernel would have them in every mount of it. The node's has them.
		"--set-json", `kubeletPlugin.extraVolumes=[{"name":"host-proc","hostPath":{"path":"/proc"}}]`,
		"--set-json", `kubeletPlugin.containers.plugin.extraVolumeMounts=[{"name":"host-proc","mountPath":"/proc"}]`,
		"--set", "image.repository=" + repository, "--set", "image.tag=" + tag, "--set", "image.pullPolicy=Never",
	}, args...)...)
	return err
}

// PreviousChart puts the chart of the commit before this one into a folder. It returns an error where this source tree is
// no clone with that commit.
func PreviousChart(ctx context.Context, dir string) (string, error) {
	top, err := sourceTree(ctx)
	if err != nil {
		return "", err
	}
	const chart = "deployments/helm/aliquot"
	archive := filepath.Join(dir, "chart.tar")
	for _, argv := range [][]string{
		{"git", "-C", top, "archive", "--output", archive, "HEAD~1", chart},
		{"tar", "-C", dir, "-xf", archive},
	} {
		if output, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("take the chart of the previous commit: %w: %s", err, output)
		}
	}
	return filepath.Join(dir, chart), nil
}

// NodeLabels are those by which the chart's default affinity finds a node with GPUs.
func NodeLabels() map[string]string {
	return map[string]string{"nvidia.com/gpu.present": "true"}
}

// sourceTree is the directory of the module.
func sourceTree(ctx context.Context) (string, error) {
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "aliquot.dev/aliquot").Output()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	return strings.TrimSpace(string(output)), nil
}
