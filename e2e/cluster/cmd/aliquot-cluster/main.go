// Command aliquot-cluster runs an embedded Kubernetes cluster for people: it is
// what the demo and one's own experiments stand on.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/cluster/programs"
	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
)

func main() {
	cluster.Reexec()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "aliquot-cluster:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var dir string
	root := &cobra.Command{
		Use:           "aliquot-cluster",
		Short:         "Run a Kubernetes cluster as plain processes of this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&dir, "dir", "", "directory of the cluster (default: one in the user's cache directory)")
	root.PersistentPreRunE = func(*cobra.Command, []string) (err error) {
		if dir == "" {
			dir, err = defaultDir()
		}
		return err
	}
	root.AddCommand(buildCommand(), upCommand(&dir), downCommand(&dir), statusCommand(&dir))
	return root
}

func defaultDir() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "aliquot", "cluster", "up"), err
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the programs of the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bin, err := programs.Build(cmd.Context(), os.Stderr)
			if err == nil {
				fmt.Println(bin)
			}
			return err
		},
	}
}

func upCommand(dir *string) *cobra.Command {
	var nodes int
	var hardware string
	var keep, aliquot bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster and leave it running",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c, err := cluster.Attach(*dir); err == nil {
				fmt.Fprintln(os.Stderr, "the cluster runs already")
				explain(c)
				return nil
			}
			config := cluster.Config{Dir: *dir, Keep: keep, Detach: true, Log: os.Stderr}
			var err error
			if config.Nodes, err = describeNodes(nodes, hardware); err != nil {
				return err
			}
			c, err := cluster.Start(cmd.Context(), config)
			if err != nil {
				return err
			}
			explain(c)
			if aliquot {
				_, err = scenario.Install(cmd.Context(), os.Stderr, c)
			}
			return err
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", 1, "number of nodes")
	cmd.Flags().StringVar(&hardware, "hardware", "", fmt.Sprintf("simulated GPUs of each node: one of %v", simdriver.Names()))
	cmd.Flags().BoolVar(&aliquot, "aliquot", false, "install Aliquot, as `make build` made it, and an image with a CUDA test program")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the cluster's directory, with its logs, when it stops")
	return cmd
}

func describeNodes(count int, hardware string) ([]cluster.Node, error) {
	var gpus *simdriver.Hardware
	if hardware != "" {
		loaded, err := simdriver.Load(hardware)
		if err != nil {
			return nil, err
		}
		gpus = &loaded
	}
	nodes := make([]cluster.Node, count)
	for i := range nodes {
		nodes[i] = cluster.Node{Name: fmt.Sprintf("node-%d", i+1), Hardware: gpus}
		if gpus != nil {
			nodes[i].Labels = release.NodeLabels()
		}
	}
	return nodes, nil
}

// explain prints what a shell needs to use the cluster.
func explain(c *cluster.Cluster) {
	fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig)
	fmt.Printf("export PATH=%s:$PATH\n", c.Programs())
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and remove all of it",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := cluster.Attach(*dir)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return cluster.Clean()
			}
			return c.Stop()
		},
	}
}

func statusCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Tell of the cluster's nodes and processes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Attach(*dir)
			if err != nil {
				return err
			}
			explain(c)
			out, err := c.Kubectl(cmd.Context(), "get", "nodes", "--output=wide")
			fmt.Print(out)
			return errors.Join(err, c.Check(cmd.Context()))
		},
	}
}
