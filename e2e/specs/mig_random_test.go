//go:build e2e

package specs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
)

var (
	migClaims = flag.Int("mig.claims", 200, "how many claims come and go in TestClaimsOfEveryKindComeAndGo")
	migSeed   = flag.Uint64("mig.seed", 0, "seed of TestClaimsOfEveryKindComeAndGo; 0 takes a new one")
)

const (
	migPods   = 2 // at once
	migOfAPod = 4 // claims. Each takes one GPU at most, so that all find a place on eight at any time
)

// TestClaimsOfEveryKindComeAndGo: shares, partitions, shares of partitions and whole GPUs, at random, while somebody looks
// at the hardware all the time and the plugin is killed twice.
func TestClaimsOfEveryKindComeAndGo(t *testing.T) {
	s := begin(t, hopper)
	seed := *migSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-mig.seed %d", seed)
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	var made atomic.Int64
	var workers, watcher sync.WaitGroup
	for w := range migPods {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		workers.Go(func() {
			pods := int64(*migClaims) / migOfAPod
			for n := made.Add(1); n <= pods && ctx.Err() == nil; n = made.Add(1) {
				if err := s.comeAndGo(ctx, random, fmt.Sprintf("random-%d", n)); err != nil {
					stop(fmt.Errorf("pod %d: %w", n, err))
				}
				if n == pods/3 || n == pods*2/3 {
					if err := scenario.Eventually(ctx, "the plugin is killed", func(ctx context.Context) (bool, error) {
						err := s.KillPlugin(ctx, s.node) // there may be none at the moment
						return err == nil, err
					}); err != nil {
						stop(err)
					}
				}
			}
		})
	}
	looking, looked := context.WithCancel(ctx)
	watcher.Go(func() {
		for ; looking.Err() == nil; <-time.After(100 * time.Millisecond) { // leaves the machine to the rest
			if err := s.hardwareAgrees(looking); err != nil && looking.Err() == nil {
				stop(err)
			}
		}
	})
	workers.Wait()
	looked()
	watcher.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range s.cards() {
		s.divided(i, "false")
	}
}

// anyRequest is of any kind.
func anyRequest(random *rand.Rand) request {
	profiles := []string{"1g.10gb", "1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}
	switch random.IntN(5) {
	case 0:
		return request{name: "gpu", class: v1alpha1.DriverName}
	case 1:
		return request{name: "gpu", memory: fmt.Sprintf("%dGi", 1+random.IntN(40)), cores: fmt.Sprint(random.IntN(60))}
	case 2:
		return request{name: "gpu", class: migClass, memory: fmt.Sprintf("%dGi", 1+random.IntN(5)), selector: profileOn(-1, "1g.10gb")}
	default:
		return request{name: "gpu", class: migClass, selector: profileOn(-1, profiles[random.IntN(len(profiles))])}
	}
}

// comeAndGo runs a pod with claims until it is up, and removes all.
func (s *spec) comeAndGo(ctx context.Context, random *rand.Rand, name string) error {
	claims, pods := s.Client.ResourceV1().ResourceClaims(s.namespace), s.Client.CoreV1().Pods(s.namespace)
	container := idle("main")
	var uses []corev1.PodResourceClaim
	for i := range migOfAPod {
		claim := fmt.Sprintf("%s-%d", name, i)
		_, err := claims.Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: claim}, Spec: claimSpec([]request{anyRequest(random)})}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		uses = append(uses, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	if _, err := pods.Create(ctx, s.podOf(name, uses, container), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := scenario.Eventually(ctx, name+" runs", func(ctx context.Context) (bool, error) {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	}); err != nil {
		return fmt.Errorf("%w\n%s", err, s.Explain(ctx, s.namespace, name))
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := scenario.Eventually(ctx, name+" is gone", func(ctx context.Context) (bool, error) {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}); err != nil {
		return err
	}
	var errs []error
	for _, use := range uses {
		errs = append(errs, claims.Delete(ctx, *use.ResourceClaimName, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// hardwareAgrees looks at the API, at the hardware and at the API again. A partition that is there is allocated, and one
// that is allocated to a pod that runs all the while is there; no GPU that has one is allocated itself to such a pod.
func (s *spec) hardwareAgrees(ctx context.Context) error {
	before, runningBefore, err := s.allocated(ctx)
	if err != nil {
		return err
	}
	driver, err := s.Driver(s.node)
	if err != nil {
		return err
	}
	cards, err := driver.MIG()
	if err != nil {
		return err
	}
	after, runningAfter, err := s.allocated(ctx)
	if err != nil {
		return err
	}
	present := map[string]bool{}
	var errs []error
	for i, card := range cards {
		gpu := fmt.Sprintf("gpu-%d", i)
		for _, instance := range card.Instances {
			name := slotName(i, instance)
			present[name] = true
			if !before[name] && !after[name] {
				errs = append(errs, fmt.Errorf("%s is there and not allocated", name))
			}
		}
		if len(card.Instances) > 0 && runningBefore[gpu] && runningAfter[gpu] {
			errs = append(errs, fmt.Errorf("%s is given out and has the partitions %s", gpu, describe(card)))
		}
	}
	for name := range runningBefore {
		if runningAfter[name] && strings.Contains(name, "-mig-") && !present[name] {
			errs = append(errs, fmt.Errorf("%s is given out and not there", name))
		}
	}
	return errors.Join(errs...)
}

// slotName is the name under which the place of a partition is published.
func slotName(card int, instance simdriver.MIGInstance) string {
	return fmt.Sprintf("gpu-%d-mig-%s-%d", card, strings.NewReplacer(".", "-", "+", "-").Replace(instance.Profile), instance.Start)
}

// allocated are the node's devices that claims have, and those among them that pods have which run and are not being
// deleted.
func (s *spec) allocated(ctx context.Context) (all, running map[string]bool, err error) {
	pods, err := s.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	up := map[string]bool{}
	for _, pod := range pods.Items {
		up[pod.Name] = pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
	}
	claims, err := s.liveClaims(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, running = map[string]bool{}, map[string]bool{}
	for _, claim := range claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			all[result.Device] = true
			if pod := claim.Name[:strings.LastIndex(claim.Name, "-")]; up[pod] {
				running[result.Device] = true
			}
		}
	}
	return all, running, nil
}
