package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"aliquot.dev/aliquot/internal/driver"
	"aliquot.dev/aliquot/internal/nvml"
	"aliquot.dev/aliquot/internal/preflight"
)

// doctorCommand looks for what keeps pods from starting. In the plugin's container its flags are set by the same
// environment as the plugin's.
func doctorCommand() *cobra.Command {
	var f flags
	output := "text"
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps pods with GPUs from starting on this node, and say how to mend it.",
		Args:  cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output is %q: want text or json", output)
			}
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			return nameNode(&f)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			klog.SetLogger(klog.Logger{}) // what was found says it all
			hardware := nvml.New(nvml.Driver{Root: f.driverRoot, RootMount: f.driverRootMount, CDIHook: f.cdiHook})
			client, err := newClient(f.kubeconfig, nil)
			config := preflightOf(f, hardware, client)
			config.NoClient = err
			report := preflight.Run(cmd.Context(), config)
			if err := write(report, output, cmd.OutOrStdout()); err != nil {
				return err
			}
			if failed := report.Count(preflight.Fail); failed > 0 {
				return fmt.Errorf("%d of %d checks failed", failed, len(report.Findings))
			}
			return nil
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", output, "how to write what was found: text or json")
	return cmd
}

// nameNode validates the flags. By hand on a node its name is mostly that of the machine, as the kubelet takes it.
func nameNode(f *flags) error {
	if f.nodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("name the node: %w", err)
		}
		f.nodeName = strings.ToLower(name)
	}
	return f.validate()
}

func write(report preflight.Report, output string, w io.Writer) error {
	if output == "json" {
		return report.JSON(w)
	}
	return report.Text(w)
}

// preflightOf is where the plugin's flags say that things are.
func preflightOf(f flags, hardware preflight.Hardware, client kubernetes.Interface) preflight.Config {
	return preflight.Config{
		NodeName:     f.nodeName,
		Hardware:     hardware,
		Root:         f.driverRoot,
		RootMount:    f.driverRootMount,
		DataDir:      f.dataDir(),
		RegistrarDir: f.registrarDir,
		CDIDir:       f.cdiDir,
		RunDir:       f.runDir,
		Proc:         "/proc",
		Cgroup:       "/sys/fs/cgroup",
		Client:       client,
		Serves:       driver.Serves,
		DevicePlugin: driver.DevicePluginResource,

		BesideDevicePlugin: f.beside,
	}
}
