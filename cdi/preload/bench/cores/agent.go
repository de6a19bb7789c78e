package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/e2e/simrun"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/usage"
)

// agent is the node's agent on the virtual clock: the controller that the plugin runs, over the files that it uses.
type agent struct {
	dir        string
	tenants    []tenant
	controller *usage.Controller
	regions    []*cdi.Usage
	pages      []*cdi.Agent
}

// newAgent makes the files of each tenant's share, as prepare does, and opens them.
func newAgent(dir string, tenants []tenant) (*agent, error) {
	a := &agent{dir: filepath.Join(dir, "shares"), tenants: tenants, controller: usage.NewController()}
	layout := cdi.Layout{SpecDir: filepath.Join(dir, "specs"), SharesDir: a.dir}
	store, err := cdi.NewStore(layout)
	if err != nil {
		return nil, err
	}
	for i, t := range tenants {
		quota := &cdi.Quota{GPU: gpuUUID, MemoryBytes: 4 << 30, CorePercent: t.percent, CorePolicy: "Fixed", CorePermille: usage.BestEffort(a.told(nil))}
		if t.percent > 0 {
			quota.CorePermille = 0
		}
		if t.burst {
			quota.CorePolicy = "Burst"
		}
		device := cdi.Device{Request: "gpu", ID: claimUID(i), Quota: quota}
		if err := store.WriteShares(cdi.Claim{UID: claimUID(i), Devices: []cdi.Device{device}}); err != nil {
			return nil, err
		}
		region, err := cdi.OpenUsage(layout.ShareDir(claimUID(i), device))
		if err != nil {
			return nil, err
		}
		page, err := cdi.OpenAgent(layout.ShareDir(claimUID(i), device))
		if err != nil {
			return nil, err
		}
		a.regions, a.pages = append(a.regions, region), append(a.pages, page)
	}
	return a, nil
}

func claimUID(i int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", i) }

func (a *agent) claimDir(i int) string { return filepath.Join(a.dir, claimUID(i)) }

// told is what the controller is told of the tenants, from their regions.
func (a *agent) told(regions []cdi.Region) []usage.Tenant {
	told := make([]usage.Tenant, len(a.tenants))
	for i, t := range a.tenants {
		told[i] = usage.Tenant{ID: strconv.Itoa(i), CorePercent: t.percent, Burst: t.burst}
		if regions == nil {
			continue
		}
		told[i].Launches, told[i].ChargedNS, told[i].ThrottleNS = regions[i].Launches, regions[i].ChargedNS, regions[i].ThrottleNS
		for _, slot := range regions[i].Slots {
			if slot.Live && slot.HostPID > 0 {
				told[i].PIDs = append(told[i].PIDs, slot.HostPID)
			}
		}
	}
	return told
}

// step is one look at the GPU.
func (a *agent) step(now simrun.Tick) error {
	regions := make([]cdi.Region, len(a.regions))
	for i, region := range a.regions {
		var err error
		if regions[i], err = region.Read(); err != nil {
			return err
		}
	}
	sample := usage.Sample{Tenants: a.told(regions), Measured: true}
	for _, s := range now.Samples {
		sample.Utilization = append(sample.Utilization, gpu.Utilization{PID: s.PID, TimeUS: s.TimeUS, SMPercent: s.SMPercent})
	}
	for i, d := range a.controller.Step(time.Duration(now.Clock), sample) {
		page := cdi.Page{TimeNS: now.Clock, CorrectionPermille: d.CorrectionPermille, BusyPermille: d.BusyPermille, CorePermille: d.CorePermille}
		if err := a.pages[i].Write(page); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) close() error {
	var err error
	for i := range a.pages {
		err = errors.Join(err, a.pages[i].Close(), a.regions[i].Close())
	}
	return err
}
