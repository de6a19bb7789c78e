package simdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The driver numbers capabilities of so many cards, of instances of each and of
// compute instances in each of those, whether or not they are there (MIG user
// guide, "Device Nodes and Capabilities").
const (
	capsCards     = 32
	capsInstances = 15
	capsComputes  = 8
	capsConfig    = 1
	capsMonitor   = 2
)

// ProcDriver is what must be seen at /proc/driver by whoever looks for the minor
// numbers of capabilities, as the NVIDIA Container Toolkit does.
func (r *Root) ProcDriver() string { return filepath.Join(r.Path, "proc/driver") }

// capInstance is the minor number of a GPU instance's capability; those of its
// compute instances follow.
func capInstance(gpuMinor, instance int) int {
	return capsMonitor + 1 + (gpuMinor*capsInstances+instance)*(1+capsComputes)
}

// makeCaps makes the table of capabilities, and their nodes as far as the cards can
// need them. Without a card that can be divided there is neither.
func (r *Root) makeCaps(context.Context) error {
	if !slices.ContainsFunc(r.Hardware.GPUs, func(g GPU) bool { return len(g.MIGProfiles) > 0 }) {
		return nil
	}
	nodes := filepath.Join(r.Path, "dev/nvidia-caps")
	table := filepath.Join(r.ProcDriver(), "nvidia-caps")
	if err := errors.Join(os.MkdirAll(nodes, 0o755), os.MkdirAll(table, 0o755)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(table, "mig-minors"), []byte(migMinors()), 0o444); err != nil {
		return err
	}
	for _, minor := range r.capMinors() {
		mode := os.FileMode(0o444)
		if minor == capsConfig {
			mode = 0o400
		}
		path := filepath.Join(nodes, fmt.Sprintf("nvidia-cap%d", minor))
		if err := makeNode(path, unix.Mkdev(majorCaps, uint32(minor)), mode); err != nil {
			return err
		}
	}
	return nil
}

// migMinors is /proc/driver/nvidia-caps/mig-minors.
func migMinors() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %d\nmonitor %d\n", capsConfig, capsMonitor)
	for gpu := range capsCards {
		for instance := range capsInstances {
			minor := capInstance(gpu, instance)
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", gpu, instance, minor)
			for compute := range capsComputes {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", gpu, instance, compute, minor+1+compute)
			}
		}
	}
	return b.String()
}

// capMinors are those that the cards can need. A card numbers its instances by their
// size: 0 is the whole of it, 1 and 2 are halves, and so on.
func (r *Root) capMinors() []int {
	minors := []int{capsConfig, capsMonitor}
	for _, gpu := range r.Hardware.GPUs {
		most := map[int]int{} // slices by number of instance
		size := 0
		for _, profile := range gpu.MIGProfiles {
			size = max(size, profile.Size)
		}
		for _, profile := range gpu.MIGProfiles {
			count := size / profile.Size
			for instance := count - 1; instance < 2*count-1; instance++ {
				most[instance] = max(most[instance], profile.Slices)
			}
		}
		for instance, computes := range most {
			for i := range 1 + computes {
				minors = append(minors, capInstance(*gpu.Minor, instance)+i)
			}
		}
	}
	return minors
}

// makePartitions divides the cards as their descriptions say, if nobody did before.
func (r *Root) makePartitions(context.Context) error {
	info, err := os.Stat(r.State("mig"))
	if err != nil || info.Size() > 0 {
		return err
	}
	for i, gpu := range r.Hardware.GPUs {
		if gpu.MIG == nil || !gpu.MIG.Enabled {
			continue
		}
		// What an Ampere card says of the mode is that a reset is needed.
		_ = r.SetMIGMode(i, true)
		if err := r.ResetGPU(i); err != nil {
			return err
		}
		for _, place := range gpu.MIG.Instances {
			if _, err := r.CreateMIG(i, place.Profile, place.Start); err != nil {
				return err
			}
		}
	}
	return nil
}
