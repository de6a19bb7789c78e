package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/inventory"
)

// world is a cluster with a fleet of GPUs that nothing but ResourceSlices tells of.
type world struct {
	*cluster.Cluster
	client       client.Client
	certificates certificates
	dir          string
	claims       int
	owners       []metav1.OwnerReference // by namespace of stored claims
}

const (
	reservingNamespaces = 32 // of claims that are only reviewed, with limits: what reserves there is never stored, and piles up
	claimsNamespaces    = 5  // of claims that are stored, with limits
	directNamespace     = "direct"
	parallel            = 16
	patience            = 3 * time.Minute
)

func reserving(i int) string { return fmt.Sprintf("reserving-%d", i%reservingNamespaces) }
func storing(i int) string   { return fmt.Sprintf("storing-%d", i%claimsNamespaces) }

// start brings up the cluster with the chart, without its controller, and the fleet.
func start(ctx context.Context, nodes int) (*world, error) {
	dir, err := os.MkdirTemp("", "aliquot-bench-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	if w.certificates, err = newCertificates(dir); err == nil {
		w.Cluster, err = cluster.Start(ctx, cluster.Config{Log: os.Stderr})
	}
	if err == nil {
		err = w.fill(ctx, nodes)
	}
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

func (w *world) stop() error {
	defer os.RemoveAll(w.dir)
	if w.Cluster == nil {
		return nil
	}
	return w.Stop()
}

func (w *world) fill(ctx context.Context, nodes int) error {
	config, err := w.RESTConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // many objects
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	if err := release.Upgrade(ctx, w.Cluster, "--set", "controller.enabled=false"); err != nil {
		return err
	}
	if _, err := w.Kubectl(ctx, "apply", "-f", casesDir+"/classes.yaml"); err != nil {
		return err
	}
	if w.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if err := w.limit(ctx); err != nil {
		return err
	}
	return w.publish(ctx, nodes)
}

// limit makes the namespaces whose totals are limited, to more than anybody asks for.
func (w *world) limit(ctx context.Context) error {
	namespaces := []string{directNamespace}
	for i := range reservingNamespaces {
		namespaces = append(namespaces, reserving(i))
	}
	for i := range claimsNamespaces {
		namespaces = append(namespaces, storing(i))
	}
	shares := int64(1_000_000)
	for _, name := range namespaces {
		quota := &v1alpha1.ShareQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "limits"},
			Spec:       v1alpha1.ShareQuotaSpec{Hard: &v1alpha1.HardLimits{Shares: &shares}},
		}
		if err := w.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
		if err := w.client.Create(ctx, quota); err != nil {
			return err
		}
	}
	return nil
}

// publish stores what nodes would: one with four T4, as the cases expect, and others with eight H100 each.
func (w *world) publish(ctx context.Context, nodes int) error {
	hopper, err := gpu.FromFile("internal/gpu/testdata/h100x8.yaml")
	if err != nil {
		return err
	}
	turing, err := gpu.FromFile("internal/gpu/testdata/t4x4.yaml")
	if err != nil {
		return err
	}
	var all []client.Object
	devices := 0
	for node := range nodes + 1 {
		gpus := hopper
		if node == nodes {
			gpus = turing
		}
		for _, slice := range slicesOf(node, gpus) {
			devices += len(slice.Spec.Devices)
			all = append(all, slice)
		}
	}
	if err := w.create(ctx, all); err != nil {
		return err
	}
	fmt.Printf("%d devices are published\n", devices)
	return nil
}

func gpuUUID(node, index int) string {
	return fmt.Sprintf("GPU-%08x-0000-0000-0000-%012x", node, index)
}

func slicesOf(node int, gpus []gpu.Device) (all []*resourceapi.ResourceSlice) {
	name := fmt.Sprintf("gpu-node-%d", node)
	own := make([]gpu.Device, len(gpus))
	for i, g := range gpus {
		own[i] = g
		own[i].UUID = gpuUUID(node, i)
	}
	for pool, published := range inventory.Resources(name, own, nil).Pools {
		for i, slice := range published.Slices {
			all = append(all, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: v1alpha1.DriverName, NodeName: &name, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
					Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(published.Slices))},
				},
			})
		}
	}
	return all
}

// storeClaims stores claims until there are so many. They look like those that are made of templates for pods.
func (w *world) storeClaims(ctx context.Context, total int) error {
	if err := w.findOwners(ctx); err != nil {
		return err
	}
	var all []client.Object
	for ; w.claims < total; w.claims++ {
		all = append(all, w.claim(w.claims))
	}
	return w.create(ctx, all)
}

func (w *world) claim(i int) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: storing(i), Name: fmt.Sprintf("inference-7f9c8d5b4-%05d-gpu-x2b7k", i), GenerateName: fmt.Sprintf("inference-7f9c8d5b4-%05d-gpu-", i),
			Annotations:     map[string]string{resourceapi.PodResourceClaimAnnotation: "gpu"},
			Labels:          map[string]string{"app.kubernetes.io/name": "inference", "app.kubernetes.io/part-of": "assistant"},
			OwnerReferences: w.owners[i%claimsNamespaces : i%claimsNamespaces+1],
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "share.gpu.aliquot.dev",
				Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
					v1alpha1.CapacityMemory: resource.MustParse("1Gi"),
				}},
			},
		}}}},
	}
}

// create stores objects, several at once.
func (w *world) create(ctx context.Context, all []client.Object) error {
	errs := make([]error, len(all))
	workqueue.ParallelizeUntil(ctx, parallel, len(all), func(i int) { errs[i] = w.client.Create(ctx, all[i]) })
	return errors.Join(append(errs, ctx.Err())...)
}

// findOwners finds what owns the claims, or they would be removed: pods do, which are not needed here.
func (w *world) findOwners(ctx context.Context) error {
	w.owners = nil
	for i := range claimsNamespaces {
		var quota v1alpha1.ShareQuota
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: storing(i), Name: "limits"}, &quota); err != nil {
			return err
		}
		w.owners = append(w.owners, metav1.OwnerReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "ShareQuota", Name: quota.Name, UID: quota.UID,
		})
	}
	return nil
}

// counted waits until the controller has counted so many claims, and so has read and reconciled them all.
func (w *world) counted(ctx context.Context, claims int) error {
	var count int64
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		count = 0
		for i := range claimsNamespaces {
			var quota v1alpha1.ShareQuota
			if err := w.client.Get(ctx, client.ObjectKey{Namespace: storing(i), Name: "limits"}, &quota); err != nil {
				return false, err
			}
			if quota.Status.Used != nil {
				count += quota.Status.Used.Shares
			}
		}
		return count == int64(claims), nil
	})
	if err != nil {
		return fmt.Errorf("wait until %d claims are counted, %d are: %w", claims, count, err)
	}
	return nil
}

// direct does ten times a second what the controller does for a reservation: it reads a ShareQuota and writes its status,
// again if somebody else came before.
func (w *world) direct(ctx context.Context, round time.Duration) ([]time.Duration, error) {
	const every = 100 * time.Millisecond
	var took []time.Duration
	start := time.Now()
	for due := start; due.Before(start.Add(round)); due = due.Add(every) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(due)):
		}
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			var quota v1alpha1.ShareQuota
			if err := w.client.Get(ctx, client.ObjectKey{Namespace: directNamespace, Name: "limits"}, &quota); err != nil {
				return err
			}
			quota.Status.Reservations = []v1alpha1.ShareReservation{{UID: uuid.NewUUID(), Name: "claim", Time: metav1.Now()}}
			return w.client.Status().Update(ctx, &quota)
		})
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(due))
	}
	return took, nil
}
