package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"
)

// DumpLogs copies what one wants to see after a failure into a directory: the
// logs of the cluster's processes and of its pods, and what the API server
// knows of pods, claims, devices and events. It gets what it can: an error
// tells of what is missing.
func (c *Cluster) DumpLogs(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	problems := []error{copyDirectory(filepath.Join(dir, "processes"), c.plan.path("logs"))}
	for _, node := range c.Nodes() {
		problems = append(problems, copyDirectory(filepath.Join(dir, "pods", node), c.plan.node(node, "var/log/pods")))
	}
	questions := map[string][]string{
		"events.txt":    {"get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"},
		"pods.txt":      {"describe", "pods", "--all-namespaces"},
		"nodes.yaml":    {"get", "nodes", "--output=yaml"},
		"pods.yaml":     {"get", "pods", "--all-namespaces", "--output=yaml"},
		"claims.yaml":   {"get", "resourceclaims", "--all-namespaces", "--output=yaml"},
		"slices.yaml":   {"get", "resourceslices", "--output=yaml"},
		"classes.yaml":  {"get", "deviceclasses", "--output=yaml"},
		"workload.yaml": {"get", "daemonsets,deployments,services", "--all-namespaces", "--output=yaml"},
	}
	for name, question := range questions {
		answer, err := c.Kubectl(ctx, question...)
		problems = append(problems, err, os.WriteFile(filepath.Join(dir, name), []byte(answer), 0o644))
	}
	return errors.Join(problems...)
}

// copyDirectory copies the regular files below a directory; containerd's logs
// of pods are such, kubelet's links to them are not needed.
func copyDirectory(destination, source string) error {
	if err := os.MkdirAll(destination, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(source, func(path string, found os.DirEntry, err error) error {
		if err != nil || !found.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(destination, relative)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o644)
	})
}
