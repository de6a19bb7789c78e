package nvml

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// The toolkit looks for capabilities under /proc/driver of its own process.
func TestEditsOfAPartition(t *testing.T) {
	ownMounts := func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS} }
	if !ownProcess(t, ownMounts) {
		return
	}
	hw := hardware(t, "h100x8")
	hw.GPUs[1].MIG = &simdriver.MIGStart{Enabled: true, Instances: []simdriver.MIGPlace{{Profile: "1g.10gb", Start: 0}, {Profile: "3g.40gb", Start: 4}}}
	r := rootOf(t, hw)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skip(err)
	}
	if err := unix.Mount(r.ProcDriver(), "/proc/driver", "", unix.MS_BIND, ""); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/proc/driver", unix.MNT_DETACH) })
	cards, err := r.MIG()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{hw.GPUs[0].UUID: {"/dev/nvidia0"}}
	for _, instance := range cards[1].Instances {
		first := 3 + (15+instance.ID)*9 // gpu1/gi<id>/access; that of its first compute instance follows
		want[instance.Computes[0].UUID] = []string{
			fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", first), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", first+1), "/dev/nvidia1",
		}
	}
	checkNodes(t, open(r), want)

	// A table that lacks an instance hides that partition alone.
	lost := cards[1].Instances[0]
	table := filepath.Join(r.ProcDriver(), "nvidia-caps/mig-minors")
	lines, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	without := strings.ReplaceAll(string(lines), fmt.Sprintf("gpu1/gi%d/access", lost.ID), "gpu31/gi99/access")
	if err := os.WriteFile(table, []byte(without), 0o644); err != nil {
		t.Fatal(err)
	}
	want[lost.Computes[0].UUID] = nil
	checkNodes(t, open(r), want)
}

// checkNodes compares the device nodes of the edits by UUID; nil is for what is left out.
func checkNodes(t *testing.T, n *Node, want map[string][]string) {
	t.Helper()
	var uuids []string
	got := map[string][]string{}
	for uuid := range want {
		uuids, got[uuid] = append(uuids, uuid), nil
	}
	common, byUUID, err := n.Edits(uuids)
	if err != nil {
		t.Fatal(err)
	}
	for uuid, edits := range byUUID {
		for _, node := range edits.DeviceNodes {
			got[uuid] = append(got[uuid], node.Path)
			if node.HostPath != filepath.Join(n.driver.Root, node.Path) {
				t.Errorf("%s is from %s", node.Path, node.HostPath)
			}
		}
		slices.Sort(got[uuid])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	for _, node := range common.DeviceNodes {
		if strings.Contains(node.Path, "nvidia-caps") {
			t.Errorf("every container would have %s", node.Path)
		}
	}
}
