// Command simdriver makes a simulated driver root by hand and shows what its
// hardware has given out. Tests use the package instead.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"aliquot.dev/aliquot/e2e/simdriver"
)

func main() {
	if err := command().Execute(); err != nil {
		os.Exit(1)
	}
}

func command() *cobra.Command {
	cmd := &cobra.Command{
		Use:          "simdriver",
		Short:        "A simulated NVIDIA driver on a machine without a GPU",
		SilenceUsage: true,
	}
	cmd.AddCommand(rootCommand(), ledgerCommand())
	return cmd
}

func rootCommand() *cobra.Command {
	var hardware string
	cmd := &cobra.Command{
		Use:   "root DIR",
		Short: "Make a driver root",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hw, err := load(hardware)
			if err != nil {
				return err
			}
			root, err := simdriver.NewRoot(cmd.Context(), args[0], hw)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Try:\n  %s/usr/bin/nvidia-smi\n  LD_LIBRARY_PATH=%s <a CUDA program>\n", root.Path, root.LibraryDir())
			return nil
		},
	}
	cmd.Flags().StringVar(&hardware, "hardware", "h100x8",
		fmt.Sprintf("a YAML file, or one of %s", strings.Join(simdriver.Names(), ", ")))
	return cmd
}

// load takes a name without a slash or a dot as one of the package's own.
func load(hardware string) (simdriver.Hardware, error) {
	if !strings.ContainsAny(hardware, "/.") {
		return simdriver.Load(hardware)
	}
	data, err := os.ReadFile(hardware)
	if err != nil {
		return simdriver.Hardware{}, err
	}
	return simdriver.Parse(data)
}

func ledgerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ledger DIR",
		Short: "Show what the hardware has given out, as JSON",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, err := simdriver.Open(args[0])
			if err != nil {
				return err
			}
			ledger, err := root.Ledger()
			if err != nil {
				return err
			}
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(ledger)
		},
	}
}
