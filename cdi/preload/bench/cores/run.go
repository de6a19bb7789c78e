package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/simrun"
)

const (
	sharesDir = "aliquot-shares" // compiled into the library; relative to a tenant's folder
	gpuUUID   = "GPU-00000001-aaaa-bbbb-cccc-0123456789ab"

	tick     = 500 * time.Millisecond // of the agent
	warmUp   = 10 * time.Second       // before what is measured
	measured = 30 * time.Second
)

// Hardware whose contexts cost nothing.
const hardware = `
driverVersion: 580.95.05
nvmlVersion: 13.580.95.05
cudaVersion: "13.0"
gpus:
- {model: t4, uuid: ` + gpuUUID + `, serial: "1000", pci: {busID: "00000000:01:00.0", deviceID: 515379422}}
`

// setting is what the tenants run in.
type setting struct {
	dir, library string
	programs     simrun.Programs
	demands      map[string]float64 // of a workload alone, without the library, percent
}

func setUp(ctx context.Context, source, dir string) (*setting, error) {
	s := &setting{dir: dir, library: filepath.Join(dir, "lib", "libaliquot.so"), demands: map[string]float64{}}
	var err error
	if s.programs, err = simrun.Build(ctx, dir); err != nil {
		return nil, err
	}
	make := exec.CommandContext(ctx, "make", "-C", source, "OUT="+filepath.Dir(s.library), "SHARES_DIR="+sharesDir)
	if output, err := make.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", make, err, output)
	}
	return s, nil
}

// simulate runs tenants on a simulated machine of their own for so long, limited or as they like.
func (s *setting) simulate(ctx context.Context, tenants []tenant, limited bool, length time.Duration) (ticks []simrun.Tick, err error) {
	dir, err := os.MkdirTemp(s.dir, "run-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	hw, err := simdriver.Parse([]byte(hardware))
	if err != nil {
		return nil, err
	}
	root, err := simdriver.NewRoot(ctx, filepath.Join(dir, "driver"), hw)
	if err != nil {
		return nil, err
	}
	running := make([]simrun.Tenant, len(tenants))
	for i, t := range tenants {
		running[i] = simrun.Tenant{
			Args: append([]string{fmt.Sprintf("start_ms=%d", t.startMS)}, t.workload.args...),
			Dir:  filepath.Join(dir, "tenant-"+strconv.Itoa(i)),
		}
		if err := os.Mkdir(running[i].Dir, 0o755); err != nil {
			return nil, err
		}
		if limited {
			running[i].Preload = []string{s.library}
		}
	}
	if !limited {
		return s.programs.Run(ctx, root, running, length, tick, nil)
	}
	a, err := newAgent(dir, tenants)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	for i := range running {
		if err := os.Symlink(a.claimDir(i), filepath.Join(running[i].Dir, sharesDir)); err != nil {
			return nil, err
		}
	}
	return s.programs.Run(ctx, root, running, length, tick, a.step)
}
