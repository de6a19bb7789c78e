package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/bench"
	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/simdriver"
)

const (
	node     = "node-1"
	gpus     = 8
	parallel = 16
	patience = 3 * time.Minute
)

// world is an API server and a node with GPUs, as far as the plugin sees one.
type world struct {
	*cluster.Cluster
	client kubernetes.Interface
	driver *simdriver.Root
	dir    string // what outlives a reboot
	runDir string // what does not
	claims []*resourceapi.ResourceClaim

	plugin  *bench.Process
	kubelet *kubelet
}

// start brings up the cluster, of which only the API server is needed.
func start(ctx context.Context) (_ *world, err error) {
	w := &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	if w.dir, err = os.MkdirTemp("", "aq-bench-"); err != nil {
		return nil, err
	}
	if w.runDir, err = os.MkdirTemp("/dev/shm", "aq-bench-"); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Mkdir(w.registrar(), 0o755), os.MkdirAll(filepath.Join(w.plugins(), v1alpha1.DriverName), 0o755)); err != nil {
		return nil, err
	}
	hardware, err := simdriver.Load("h100x8")
	if err != nil {
		return nil, err
	}
	if w.driver, err = simdriver.NewRoot(ctx, filepath.Join(w.dir, "driver"), hardware); err != nil {
		return nil, err
	}
	if w.Cluster, err = cluster.Start(ctx, cluster.Config{Log: os.Stderr, Nodes: []cluster.Node{{Name: node}}}); err != nil {
		return nil, err
	}
	if err := w.StopKubelet(ctx, node); err != nil { // this program is the kubelet
		return nil, err
	}
	config, err := w.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	w.client, err = kubernetes.NewForConfig(config)
	return w, err
}

func (w *world) stop() error {
	if w.plugin != nil {
		w.plugin.Stop()
	}
	var errs []error
	if w.Cluster != nil {
		errs = append(errs, w.Stop())
	}
	for _, dir := range []string{w.dir, w.runDir} {
		if dir != "" {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

func (w *world) registrar() string { return filepath.Join(w.dir, "reg") }
func (w *world) plugins() string   { return filepath.Join(w.dir, "plugins") }
func (w *world) specs() string     { return filepath.Join(w.runDir, "cdi") }
func (w *world) shares() string    { return filepath.Join(w.runDir, "aliquot", "shares") }

// allocate stores claims as the scheduler leaves them.
func (w *world) allocate(ctx context.Context, count int) error {
	w.claims = make([]*resourceapi.ResourceClaim, count)
	errs := make([]error, count)
	claims := w.client.ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	workqueue.ParallelizeUntil(ctx, parallel, count, func(i int) {
		claim, err := claims.Create(ctx, claim(i), metav1.CreateOptions{})
		if err == nil {
			claim.Status.Allocation = allocation(i)
			claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		}
		w.claims[i], errs[i] = claim, err
	})
	return errors.Join(append(errs, ctx.Err())...)
}

var consumed = map[resourceapi.QualifiedName]resource.Quantity{
	v1alpha1.CapacityMemory: resource.MustParse("512Mi"), v1alpha1.CapacityCores: resource.MustParse("0"),
}

func claim(i int) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("inference-7f9c8d5b4-%05d-gpu-x2b7k", i),
			Annotations: map[string]string{resourceapi.PodResourceClaimAnnotation: "gpu"},
			Labels:      map[string]string{"app.kubernetes.io/name": "inference", "app.kubernetes.io/part-of": "assistant"},
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "share.gpu.aliquot.dev",
				Capacity:        &resourceapi.CapacityRequirements{Requests: consumed},
			},
		}}}},
	}
}

func allocation(i int) *resourceapi.AllocationResult {
	shareID := uuid.NewUUID()
	return &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: v1alpha1.DriverName, Pool: node + "/gpus", Device: fmt.Sprintf("gpu-%d", i%gpus),
		ShareID: &shareID, ConsumedCapacity: consumed,
	}}}}
}

// read is what the plugin asks the API server before it prepares a claim.
func (w *world) read(ctx context.Context, i int) error {
	_, err := w.client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Get(ctx, w.claims[i].Name, metav1.GetOptions{})
	return err
}

// wipe empties what is in memory on a node.
func (w *world) wipe() error {
	return errors.Join(os.RemoveAll(w.specs()), os.RemoveAll(w.shares()))
}

// whole waits until each live claim has its spec and its share.
func (w *world) whole(ctx context.Context, shares int) error {
	var specs, dirs []os.DirEntry
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		specs, _ = os.ReadDir(w.specs())
		dirs, _ = os.ReadDir(w.shares())
		return len(specs) >= shares && len(dirs) >= shares, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the files of %d shares, there are %d specs and %d shares: %w", shares, len(specs), len(dirs), err)
	}
	return nil
}

// memory is what the plugin has in memory now.
func (w *world) memory() string {
	return fmt.Sprintf("%.1f MiB resident, at most %.1f: %.1f of its own, %.1f of its program and libraries, %.1f shared files of shares",
		w.plugin.Resident(), w.plugin.Peak(), w.plugin.Status("RssAnon"), w.plugin.Status("RssFile"), w.plugin.Status("RssShmem"))
}

func (w *world) prepare(ctx context.Context, i int) (time.Duration, error) {
	c := w.claims[i]
	return timed(func() error {
		response, err := w.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{
			Claims: []*drapb.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}},
		})
		if err != nil {
			return err
		}
		if answer := response.Claims[string(c.UID)]; answer == nil || answer.Error != "" || len(answer.Devices) != 1 {
			return fmt.Errorf("prepare claim %s: answered %v", c.Name, answer)
		}
		return nil
	})
}

func (w *world) unprepare(ctx context.Context, i int) (time.Duration, error) {
	c := w.claims[i]
	return timed(func() error {
		response, err := w.kubelet.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{
			Claims: []*drapb.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}},
		})
		if err != nil {
			return err
		}
		if answer := response.Claims[string(c.UID)]; answer == nil || answer.Error != "" {
			return fmt.Errorf("unprepare claim %s: answered %v", c.Name, answer)
		}
		return nil
	})
}
