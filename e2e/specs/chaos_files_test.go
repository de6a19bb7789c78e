//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
)

// loseSpecs removes all specs, and waits until each claim that is still prepared has its own again.
func loseSpecs(ctx context.Context, s *spec, _ *rand.Rand) error {
	before, err := s.State(s.node)
	if err != nil {
		return err
	}
	if _, err := s.OnNode(ctx, s.node, "sh", "-c", "rm -f "+scenario.SpecsDir+"/"+v1alpha1.DriverName+"-share_*.json"); err != nil {
		return err
	}
	return until(ctx, "the specs are written again", func(ctx context.Context) (bool, error) {
		now, err := s.State(s.node)
		for _, uid := range before.Specs {
			if has(now, uid) && !slices.Contains(now.Specs, uid) {
				return false, fmt.Errorf("claim %s has none", uid)
			}
		}
		return err == nil, err
	})
}

func has(state scenario.State, uid string) bool {
	return slices.ContainsFunc(state.Records, func(r scenario.Record) bool { return r.UID == uid })
}

// tearRecord cuts a record short, if there is one.
func tearRecord(ctx context.Context, s *spec, random *rand.Rand) error {
	before, err := s.State(s.node)
	if err != nil || len(before.Records) == 0 {
		return err
	}
	uid := before.Records[random.IntN(len(before.Records))].UID
	record := fmt.Sprintf("%s/%s.json", scenario.RecordsDir, uid)
	if _, err := s.OnNode(ctx, s.node, "sh", "-c", fmt.Sprintf("! [ -e %[1]s ] || truncate -s 20 %[1]s", record)); err != nil {
		return err
	}
	return until(ctx, "the record is whole or gone", func(ctx context.Context) (bool, error) {
		now, err := s.State(s.node)
		// What was set aside stays beside the new record for as long as its claim is prepared.
		torn := func(other string) bool { return strings.Contains(other, uid) || !strings.HasSuffix(other, ".corrupt") }
		if err == nil && !has(now, uid) && slices.ContainsFunc(now.Other, torn) {
			err = fmt.Errorf("there is %q", now.Other)
		}
		return err == nil, err
	})
}

// breakNVML lets every discovery fail for a while.
func breakNVML(ctx context.Context, s *spec, _ *rand.Rand) error {
	return s.whileFaulty(ctx, simdriver.FailCall("nvmlInit_v2", driverNotLoaded), func(ctx context.Context) (bool, error) {
		plugin, err := s.Plugin(ctx, s.node)
		return !scenario.Ready(plugin), err
	}, func(ctx context.Context) (bool, error) {
		plugin, err := s.Plugin(ctx, s.node)
		return scenario.Ready(plugin), err
	})
}

// makeGPUUnwell makes the first GPU, which most pods have, one on which nothing should be begun.
func makeGPUUnwell(ctx context.Context, s *spec, _ *rand.Rand) error {
	const drainAndReset = 4 // of nvmlDeviceGpuRecoveryAction_t
	return s.whileFaulty(ctx, simdriver.Recovery(0, drainAndReset),
		func(ctx context.Context) (bool, error) {
			taints, err := s.taintsOfAny(ctx)
			return len(taints) > 0, err
		},
		func(ctx context.Context) (bool, error) {
			taints, err := s.taintsOfAny(ctx)
			return len(taints) == 0, err
		})
}

// whileFaulty makes the node's driver fail until that is seen, and waits until it is seen no more.
func (s *spec) whileFaulty(ctx context.Context, fault simdriver.Fault, seen, over func(context.Context) (bool, error)) error {
	driver, err := s.Driver(s.node)
	if err != nil {
		return err
	}
	defer driver.ClearFaults() // also when the wait is given up
	if err := driver.Fault(fault); err != nil {
		return err
	}
	if err := until(ctx, fmt.Sprintf("%q is seen", fault), seen); err != nil {
		return err
	}
	if err := driver.ClearFaults(); err != nil {
		return err
	}
	return until(ctx, fmt.Sprintf("%q is over", fault), over)
}

// taintsOfAny are those of all devices of the node.
func (s *spec) taintsOfAny(ctx context.Context) (taints []resourceapi.DeviceTaint, err error) {
	devices, err := s.devices(ctx, s.node)
	if err == nil && len(devices) == 0 {
		err = fmt.Errorf("node %s offers nothing", s.node)
	}
	for _, device := range devices {
		taints = append(taints, device.Taints...)
	}
	return taints, err
}
