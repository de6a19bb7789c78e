package preload_test

import (
	"fmt"
	"testing"
)

// figures is what `info` answers: success, free, total.
func figures(free, total uint64) string {
	return fmt.Sprintf("0 %d %d", free, total)
}

func TestViewIsTheShares(t *testing.T) {
	m := newMachine(t, 2)
	m.newShare(t, 0, "one", 100*mib)
	m.newShare(t, 0, "two", 28*mib)
	c, other := m.client(t, 0), m.client(t, 0)
	c.want(t, figures(128*mib, 128*mib), "info")
	c.want(t, "0 134217728", "total 0")
	c.want(t, success, "alloc 0 %d", 10*mib)
	other.want(t, success, "alloc 0 %d", 20*mib)
	c.want(t, figures(98*mib, 128*mib), "info")
	c.want(t, fmt.Sprintf("0 0 0 %d %d", 98*mib, 128*mib), "info-null")
	other.want(t, figures(98*mib, 128*mib), "info")
	nvml := fmt.Sprintf("%[1]d %[2]d %[3]d", 128*mib, 30*mib, 98*mib)
	c.want(t, "0 "+nvml+" "+nvml, "nvml 0")
}

func TestViewOfAnUnlimitedGPUIsTheDrivers(t *testing.T) {
	m := newMachine(t, 2)
	m.newShare(t, 0, "one", 100*mib)
	bare := m.client(t, 1)
	total := bare.do(t, "total 1")
	if total == "0 0" || total == "0 104857600" {
		t.Errorf("total of the card without a share is %q", total)
	}
	before := bare.do(t, "nvml 1")
	bare.want(t, success, "alloc 0 %d", 64*mib)
	if after := bare.do(t, "nvml 1"); after == before {
		t.Errorf("NVML shows %q before and after an allocation", after)
	}
}

func TestViewNeverShowsMoreThanTheCardHas(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 64<<30)
	c := m.client(t, 0)
	usable := m.root.Hardware.GPUs[0].Memory.Total - m.root.Hardware.GPUs[0].Memory.Reserved
	c.want(t, figures(usable, usable), "info")
	c.want(t, success, "alloc 0 %d", 64*mib)
	c.want(t, figures(usable-64*mib, usable), "info")
}

func TestViewShowsNoMoreFreeThanTheCardHas(t *testing.T) {
	m := newMachine(t, 1)
	m.newShare(t, 0, "one", 12<<30)
	usable := m.root.Hardware.GPUs[0].Memory.Total - m.root.Hardware.GPUs[0].Memory.Reserved
	outsider := &client{cmd: m.command(t, compile(t, "client"))}
	outsider.cmd.Env = m.environ(false)
	outsider.start(t)
	outsider.want(t, success, "init")
	outsider.want(t, success, "device 0")
	outsider.want(t, success, "alloc 0 %d", uint64(8)<<30)
	c := m.client(t, 0)
	c.want(t, figures(usable-8<<30, 12<<30), "info")
}
