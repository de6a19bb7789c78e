package main

import (
	"context"
	"embed"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"aliquot.dev/aliquot/e2e/scenario"
)

//go:embed manifests
var manifests embed.FS

// block is the granularity of the simulated hardware, as of the real one: 2 MiB.
const block = 2 << 20

// row is one line of the table: what a container was promised and what came of it. Bytes where the unit is not named.
type row struct {
	what     string
	gpu      string // the node and name of the device that it saw
	quota    uint64
	shown    uint64 // total that the program was shown
	got      uint64 // allocated until refused
	hardware uint64 // peak that the hardware's ledger has for the container
	held     bool
	why      string // what is not as promised, or what there is to say
}

// check runs all pods and judges them.
func check(ctx context.Context, w *scenario.World) ([]row, error) {
	for _, name := range []string{"two-tenants", "one-container", "others"} {
		manifest, err := manifests.ReadFile("manifests/" + name + ".yaml")
		if err != nil {
			return nil, err
		}
		if err := w.Apply(ctx, string(manifest)); err != nil {
			return nil, err
		}
	}
	var rows []row
	for _, check := range []func(context.Context, *scenario.World) ([]row, error){
		twoTenants, twoProcesses, twoClaims, twoRequests, unmodified, tooBig, byModel, nothingLeft,
	} {
		checked, err := check(ctx, w)
		if err != nil {
			return rows, err
		}
		rows = append(rows, checked...)
	}
	return rows, nil
}

// share judges a container that must be held to quota: exactly that is shown and, to the granularity of the driver,
// exactly that is granted by the hardware, at no instant more.
func share(ctx context.Context, w *scenario.World, what string, p scenario.Program, quota string) (row, error) {
	amount := resource.MustParse(quota)
	r := row{what: what, quota: uint64(amount.Value()), shown: p.Shown(), got: p.Got()}
	var err error
	if r.gpu, err = w.DeviceNames(ctx, p); err != nil {
		return row{}, err
	}
	usages, err := w.Hardware(p.Node, p.Pod)
	if err != nil {
		return row{}, err
	}
	// Containers of a pod share its host name; this one is the one with this peak, if there is one.
	for _, usage := range usages {
		var peak uint64
		for _, gpu := range usage {
			peak += gpu.Peak
		}
		if len(usages) == 1 || peak == r.got {
			r.hardware = peak
		}
	}
	reachable := r.quota - r.quota%block
	switch {
	case r.shown != r.quota:
		r.why = "is shown another total"
	case r.got != reachable:
		r.why = "could not allocate its share exactly"
	case r.hardware != reachable:
		r.why = "the hardware's ledger disagrees"
	default:
		r.held = true
	}
	return r, nil
}

func twoTenants(ctx context.Context, w *scenario.World) ([]row, error) {
	var rows []row
	gpus := map[string]bool{}
	for _, tenant := range []struct{ namespace, pod, quota string }{{"team-a", "inference", "10Gi"}, {"team-b", "training", "20Gi"}} {
		programs, err := w.Holding(ctx, tenant.namespace, tenant.pod, 1)
		if err != nil {
			return nil, err
		}
		r, err := share(ctx, w, tenant.namespace+"/"+tenant.pod+": a share of a GPU", programs[0], tenant.quota)
		if err != nil {
			return nil, err
		}
		gpus[r.gpu] = true
		rows = append(rows, r)
	}
	if len(gpus) != 1 {
		rows[1].held, rows[1].why = false, "the two shares are not on one GPU"
	}
	return rows, nil
}

func twoProcesses(ctx context.Context, w *scenario.World) ([]row, error) {
	programs, err := w.Holding(ctx, "team-c", "two-processes", 2)
	if err != nil {
		return nil, err
	}
	r, err := share(ctx, w, "two processes in one container", programs[0], "8Gi")
	return []row{r}, err
}

func twoClaims(ctx context.Context, w *scenario.World) ([]row, error) {
	programs, err := w.Holding(ctx, "team-c", "two-claims", 1)
	if err != nil {
		return nil, err
	}
	r, err := share(ctx, w, "two claims in one container, 4Gi + 6Gi", programs[0], "10Gi")
	return []row{r}, err
}

func twoRequests(ctx context.Context, w *scenario.World) ([]row, error) {
	programs, err := w.Holding(ctx, "team-c", "two-requests", 1)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, p := range programs {
		r, err := share(ctx, w, "one claim, request "+p.Container, p, map[string]string{"small": "3Gi", "large": "5Gi"}[p.Container])
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	if rows[0].gpu != rows[1].gpu {
		rows[1].held, rows[1].why = false, "the two requests are not on one GPU"
	}
	return rows, nil
}

// unmodified judges a pod that asks for nvidia.com/gpu: 1: it has a GPU to itself, all of it, and no library of ours.
func unmodified(ctx context.Context, w *scenario.World) ([]row, error) {
	programs, err := w.Holding(ctx, "team-d", "unmodified", 1)
	if err != nil {
		return nil, err
	}
	p := programs[0]
	r := row{what: "unmodified pod, nvidia.com/gpu: 1", shown: p.Shown(), got: p.Got()}
	if r.gpu, err = w.DeviceNames(ctx, p); err != nil {
		return nil, err
	}
	if len(p.GPUs()) != 1 {
		r.why = "it sees more than one GPU"
		return []row{r}, nil
	}
	uuid := p.GPUs()[0]
	gpu, err := w.GPU(p.Node, uuid)
	if err != nil {
		return nil, err
	}
	r.quota, r.hardware = gpu.Capacity, gpu.Peak
	maps, err := w.Kubectl(ctx, "exec", "--namespace", p.Namespace, p.Pod, "--", "cat", "/proc/1/maps")
	if err != nil {
		return nil, err
	}
	usages, err := w.Hardware(p.Node, p.Pod)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.Contains(maps, "libaliquot"):
		r.why = "the preload library is in it"
	case r.got != gpu.Capacity:
		r.why = "it did not get the whole GPU"
	case len(usages) != 1 || usages[0][uuid].Peak != gpu.Peak:
		r.why = "somebody else was on its GPU"
	default:
		r.held, r.why = true, "alone, unlimited, no preload library"
	}
	return []row{r}, nil
}

func tooBig(ctx context.Context, w *scenario.World) ([]row, error) {
	message, err := w.Unschedulable(ctx, "team-d", "too-big")
	if err != nil {
		return nil, err
	}
	amount := resource.MustParse("90Gi")
	return []row{{what: "a claim that fits no GPU", quota: uint64(amount.Value()), held: true, why: "pending: " + message}}, nil
}

// byModel judges a claim that selects by CEL: the mixed node's A100 is the only GPU that it can mean.
func byModel(ctx context.Context, w *scenario.World) ([]row, error) {
	programs, err := w.Holding(ctx, "team-d", "by-model", 1)
	if err != nil {
		return nil, err
	}
	r, err := share(ctx, w, "CEL on model and memory", programs[0], "5Gi")
	if err != nil {
		return nil, err
	}
	name := programs[0].Events[slices.IndexFunc(programs[0].Events, isDevice)].Name
	if name != "NVIDIA A100-SXM4-40GB" {
		r.held, r.why = false, "got a "+name
	} else if r.held {
		r.why = fmt.Sprintf("chose %s of %s", name, programs[0].Node)
	}
	return []row{r}, nil
}

// nothingLeft judges what remains when all pods are gone.
func nothingLeft(ctx context.Context, w *scenario.World) ([]row, error) {
	for _, namespace := range []string{"team-a", "team-b", "team-c", "team-d"} {
		if err := w.Delete(ctx, namespace); err != nil {
			return nil, err
		}
	}
	var left []string
	err := scenario.Eventually(ctx, "nothing is left of the pods", func(ctx context.Context) (_ bool, err error) {
		left, err = w.Leftovers(ctx)
		return len(left) == 0, err
	})
	r := row{what: "after the pods: memory, records, specs", held: err == nil, why: "nothing left"}
	if err != nil {
		r.why = strings.Join(left, ", ")
	}
	return []row{r}, nil
}
