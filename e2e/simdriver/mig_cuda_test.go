package simdriver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/simdriver"
)

// partitioned is a machine of which the first card has a 3g and a 1g, and the second
// is whole. A process that sees all has the 3g, whose number is lower.
func partitioned(t *testing.T) (root *simdriver.Root, three, one simdriver.MIGInstance) {
	t.Helper()
	hw := load(t, "h200x2")
	hw.GPUs[0].MIG = &simdriver.MIGStart{Enabled: true, Instances: []simdriver.MIGPlace{{Profile: "1g.18gb", Start: 0}, {Profile: "3g.71gb", Start: 4}}}
	root = newRoot(t, hw)
	cards, err := root.MIG()
	if err != nil {
		t.Fatal(err)
	}
	return root, cards[0].Instances[0], cards[0].Instances[1]
}

// capNode is the node of an instance's capability, or of its first compute instance's.
func capNode(root *simdriver.Root, instance simdriver.MIGInstance, further int) string {
	return filepath.Join(root.Path, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", 3+9*instance.ID+further))
}

func TestCUDAHasOneMIGDeviceOfThoseItSees(t *testing.T) {
	root, three, one := partitioned(t)
	cards := root.Hardware.GPUs
	line := func(uuid string, gpu simdriver.GPU, mebibytes uint64, processors int, name string) string {
		return fmt.Sprintf("%s %s %d %d %s\n", strings.SplitN(uuid, "-", 2)[1], strings.TrimPrefix(gpu.UUID, "GPU-"), mebibytes<<20, processors, name)
	}
	whole := line(cards[1].UUID, cards[1], (cards[1].Memory.Total-cards[1].Memory.Reserved)>>20, 132, "NVIDIA H200")
	oneLine := line(one.Computes[0].UUID, cards[0], 16384, 16, "NVIDIA H200 MIG 1g.18gb")
	threeLine := line(three.Computes[0].UUID, cards[0], 71168, 60, "NVIDIA H200 MIG 3g.71gb")
	sees := func(what, want string, environment ...string) {
		t.Helper()
		cmd := command(t, root, "mig_check", "devices")
		cmd.Env = append(cmd.Env, environment...)
		output, err := cmd.CombinedOutput()
		if diff := cmp.Diff(want, string(output)); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", what, err, diff)
		}
	}
	sees("all nodes", threeLine+whole)
	sees("one chosen", oneLine, "CUDA_VISIBLE_DEVICES="+one.Computes[0].UUID)
	sees("two chosen", oneLine, "CUDA_VISIBLE_DEVICES="+one.Computes[0].UUID+","+three.Computes[0].UUID)
	sees("one that is not there", "", "CUDA_VISIBLE_DEVICES=MIG-00000000-0000-5000-8000-000000000000")

	if err := os.Remove(capNode(root, three, 1)); err != nil {
		t.Fatal(err)
	}
	sees("only the instance's capability of 3g", oneLine+whole)
	if err := os.Remove(capNode(root, one, 0)); err != nil {
		t.Fatal(err)
	}
	sees("only the compute instance's capability of 1g", whole)
	if err := root.SetMIGMode(1, true); err != nil {
		t.Fatal(err)
	}
	sees("a second card that is empty", "")
}

// on starts a program that obeys on one MIG device.
func on(t *testing.T, root *simdriver.Root, instance simdriver.MIGInstance) *actor {
	t.Helper()
	cmd := command(t, root, "cuda_check", "obey")
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+instance.Computes[0].UUID)
	return start(t, "obey", cmd)
}

func TestMemoryOfAPartition(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root, three, one := partitioned(t)
	lib := newNVML(t, root)
	d := ask[nvml.Device](asker{t}, "handle")(lib.DeviceGetHandleByIndex(0))
	mig := ask[nvml.Device](asker{t}, "MIG device")(lib.DeviceGetHandleByUUID(one.Computes[0].UUID))

	first, second, other := on(t, root, one), on(t, root, one), on(t, root, three)
	if got := first.allocate(10 << 30); got != "0" {
		t.Fatal(got)
	}
	if got := second.allocate(7 << 30); got != "2" {
		t.Errorf("17 of 16 GiB: %s, want 2 (out of memory)", got)
	}
	if got := second.allocate(6 << 30); got != "0" {
		t.Errorf("the rest of the partition: %s", got)
	}
	if got := other.allocate(60 << 30); got != "0" {
		t.Errorf("of the other partition: %s", got)
	}
	uuid := root.Hardware.GPUs[0].UUID
	l := ledger(t, root)
	var partitions []string
	for _, p := range l.Processes {
		partitions = append(partitions, fmt.Sprint(p.Partition == one.Computes[0].UUID, p.Used[uuid]>>30))
	}
	if l.GPUs[0].Used != 76<<30 || !cmp.Equal(partitions, []string{"true 10", "true 6", "false 60"}) {
		t.Errorf("the ledger has %d bytes of the card, and processes %v", l.GPUs[0].Used, partitions)
	}

	if memory := ask[nvml.Memory](asker{t}, "memory")(mig.GetMemoryInfo()); memory != (nvml.Memory{Total: 16 << 30, Used: 16 << 30}) {
		t.Errorf("NVML says of the partition: %+v", memory)
	}
	if memory := ask[nvml.Memory_v2](asker{t}, "memory")(d.GetMemoryInfo_v2()); memory.Used != 76<<30 {
		t.Errorf("NVML says of the card: %+v", memory)
	}
	want := map[uint32]nvml.ProcessInfo{}
	for process, in := range map[*actor]simdriver.MIGInstance{first: one, second: one, other: three} {
		pid := uint32(process.cmd.Process.Pid)
		want[pid] = nvml.ProcessInfo{Pid: pid, GpuInstanceId: uint32(in.ID)}
	}
	got := map[uint32]nvml.ProcessInfo{}
	for _, p := range ask[[]nvml.ProcessInfo](asker{t}, "processes")(d.GetComputeRunningProcesses()) {
		p.UsedGpuMemory = 0
		got[p.Pid] = p
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("processes of the card (-want +got):\n%s", diff)
	}
	if n := len(ask[[]nvml.ProcessInfo](asker{t}, "processes")(mig.GetComputeRunningProcesses())); n != 2 {
		t.Errorf("%d processes of the partition, want 2", n)
	}
	if _, ret := d.GetProcessUtilization(0); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("use by processes of a card in MIG mode: %v", ret)
	}
	if _, ret := d.GetUtilizationRates(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("use of a card in MIG mode: %v", ret)
	}
	second.kill()
	if got := first.allocate(6 << 30); got != "0" {
		t.Errorf("what a dead process had of the partition: %s", got)
	}
}

// A device is not taken away from a process that uses it.
func TestPartitionsInUseStay(t *testing.T) {
	root, _, one := partitioned(t)
	process := on(t, root, one)
	if err := root.DestroyMIG(0, one.ID); err == nil || !strings.Contains(err.Error(), "NVML error 19") {
		t.Errorf("destroying what a process uses: %v", err)
	}
	if err := root.ResetGPU(0); err == nil {
		t.Error("a card that a process uses was reset")
	}
	cards, err := root.MIG()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cards[0].Instances[1].Computes[0].Processes, []int{process.cmd.Process.Pid}; !cmp.Equal(got, want) {
		t.Errorf("processes of the MIG device: %v, want %v", got, want)
	}
	process.kill()
	if err := root.DestroyMIG(0, one.ID); err != nil {
		t.Errorf("destroying what a dead process used: %v", err)
	}
}

// A process that found a device has none when the card was divided otherwise since.
func TestDevicesThatAreGoneHaveNoContexts(t *testing.T) {
	root, three, one := partitioned(t)
	late := func(device string) *actor {
		cmd := command(t, root, "mig_check", "late")
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+device)
		return start(t, "late", cmd)
	}
	onOne, onThree := late(one.Computes[0].UUID), late(three.Computes[0].UUID)
	if err := os.RemoveAll(filepath.Join(root.Path, "dev/nvidia0")); err != nil {
		t.Fatal(err)
	}
	onCard := late("")
	for name, a := range map[string]*actor{"1g": onOne, "3g": onThree, "card": onCard} {
		if got := a.allocate(0); got != "0" {
			t.Errorf("a context on %s: %s", name, got)
		}
	}
	if err := root.DestroyMIG(0, one.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := root.CreateMIG(0, "1g.18gb", one.Start); err != nil { // of the same number
		t.Fatal(err)
	}
	if err := root.SetMIGMode(1, true); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		*actor
		want string
	}{"1g": {onOne, "101"}, "3g": {onThree, "0"}, "card": {onCard, "101"}} {
		if got := test.allocate(0); got != test.want {
			t.Errorf("a context on %s: %s, want %s", name, got, test.want)
		}
	}
}

// Each partition works by itself: two that always have work are busy for twice the
// time that passes.
func TestPartitionsDoNotCompete(t *testing.T) {
	root, three, one := partitioned(t)
	uuid := root.Hardware.GPUs[0].UUID
	for _, instance := range []simdriver.MIGInstance{three, one} {
		cmd := command(t, root, "compute_check", "load")
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+instance.Computes[0].UUID)
		start(t, "load", cmd)
	}
	busy := func() (sum time.Duration) {
		for _, p := range ledger(t, root).Processes {
			sum += p.Busy[uuid]
		}
		return sum
	}
	for deadline := time.Now().Add(time.Minute); ; {
		began, before := time.Now(), busy()
		<-time.After(100 * time.Millisecond) // for that long they work side by side
		after := busy()
		if passed := time.Since(began); after-before > passed*5/4 {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("busy for %v in %v", after-before, passed)
		}
	}
}
