package nvml

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"aliquot.dev/aliquot/internal/gpu"
)

// Monitor says what processes do on the node's GPUs. Unlike Node it keeps NVML open, since it is asked twice a second:
// until an error, which a driver that was restarted under it may be, or until Release. It may be used concurrently.
type Monitor struct {
	node     *Node
	unwanted atomic.Bool // released, and not asked since

	mu      sync.Mutex
	lib     nvml.Interface // nil: not open
	devices map[string]nvml.Device
}

// Monitor returns a monitor that opens NVML when it is first asked.
func (n *Node) Monitor() *Monitor {
	m := &Monitor{node: n}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.monitors = append(n.monitors, m)
	return m
}

func (n *Node) releaseMonitors() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.monitors {
		m.Release()
	}
}

// Release closes NVML, so that it does not keep the driver from being unloaded: at once, or when the call that is under way ends,
// since that may hang with the driver. The next call opens it again.
func (m *Monitor) Release() {
	m.unwanted.Store(true)
	if m.mu.TryLock() {
		defer m.mu.Unlock()
		if m.unwanted.Load() {
			m.close()
		}
	}
}

func (m *Monitor) close() {
	if m.lib != nil {
		_ = m.lib.Shutdown()
	}
	m.lib, m.devices = nil, nil
}

// device opens a GPU, and NVML if need be.
func (m *Monitor) device(uuid string) (nvml.Device, error) {
	if m.lib == nil {
		lib, _, err := m.node.open()
		if err != nil {
			return nil, err
		}
		m.lib, m.devices = lib, map[string]nvml.Device{}
	}
	if device, ok := m.devices[uuid]; ok {
		return device, nil
	}
	device, ret := m.lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("open GPU %s: %w", uuid, ret)
	}
	m.devices[uuid] = device
	return device, nil
}

// on asks a GPU, and closes NVML if that fails: the driver may have been started anew, and then nothing else helps.
func (m *Monitor) on(uuid string, ask func(nvml.Device) error) error {
	m.mu.Lock()
	m.unwanted.Store(false)
	defer func() {
		m.mu.Unlock()
		if m.unwanted.Load() {
			m.Release()
		}
	}()
	device, err := m.device(uuid)
	if err == nil {
		err = ask(device)
	}
	if err != nil && !errors.Is(err, nvml.ERROR_NOT_SUPPORTED) {
		m.close()
	}
	return err
}

// notAvailable is what NVML gives for the memory of a process where it cannot tell.
const notAvailable = ^uint64(0)

// Processes lists the processes with a context on a GPU and what they hold of its memory. A process of which NVML cannot
// tell that, as under MIG, is left out.
func (m *Monitor) Processes(uuid string) (processes []gpu.Process, err error) {
	err = m.on(uuid, func(device nvml.Device) error {
		running, ret := device.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS {
			return fmt.Errorf("list processes of GPU %s: %w", uuid, ret)
		}
		for _, p := range running {
			if p.UsedGpuMemory != notAvailable {
				processes = append(processes, gpu.Process{PID: int(p.Pid), Bytes: p.UsedGpuMemory})
			}
		}
		return nil
	})
	return processes, err
}

// Utilization lists the samples of a GPU's processes that are newer than sinceUS, µs since the epoch; 0 lists all that the driver still
// has. Processes that used nothing may be missing. The older of NVML's two calls for it says 0 for every process on
// Blackwell, so the newer one, which drivers before 550 lack, is asked when the older one tells of no use. Both are refused under MIG.
func (m *Monitor) Utilization(uuid string, sinceUS uint64) (samples []gpu.Utilization, err error) {
	err = m.on(uuid, func(device nvml.Device) error {
		older, olderRet := processUtilization(device, sinceUS)
		if olderRet == nvml.SUCCESS && slices.ContainsFunc(older, isUse) {
			samples = older
			return nil
		}
		newer, newerRet := processesUtilizationInfo(uuid, sinceUS)
		switch {
		case newerRet == nvml.SUCCESS && len(newer) > 0:
			samples = newer
		case olderRet == nvml.SUCCESS:
			samples = older
		case newerRet != nvml.SUCCESS:
			return fmt.Errorf("read what processes use of GPU %s: %w", uuid, olderRet)
		}
		return nil
	})
	return samples, err
}

func isUse(s gpu.Utilization) bool { return s.SMPercent > 0 }

// processUtilization turns "nothing newer" into an empty list.
func processUtilization(device nvml.Device, sinceUS uint64) ([]gpu.Utilization, nvml.Return) {
	found, ret := device.GetProcessUtilization(sinceUS)
	if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INSUFFICIENT_SIZE && len(found) == 0 {
		return nil, nvml.SUCCESS
	}
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	samples := make([]gpu.Utilization, 0, len(found))
	for _, s := range found {
		samples = append(samples, gpu.Utilization{PID: int(s.Pid), TimeUS: s.TimeStamp, SMPercent: s.SmUtil})
	}
	return samples, nvml.SUCCESS
}
