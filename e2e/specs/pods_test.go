//go:build e2e

package specs_test

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/workload"
)

// request is one request of a claim, for a share unless it says of which other class.
type request struct{ name, memory, cores, class, selector string }

func claimSpec(requests []request) resourceapi.ResourceClaimSpec {
	var spec resourceapi.ResourceClaimSpec
	for _, r := range requests {
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: cmp.Or(r.class, "share.gpu.aliquot.dev")}
		if r.memory != "" {
			exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapacityMemory: resource.MustParse(r.memory)}}
		}
		if r.cores != "" {
			exactly.Capacity.Requests[v1alpha1.CapacityCores] = resource.MustParse(r.cores)
		}
		if r.selector != "" {
			exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: r.selector}}}
		}
		spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{Name: r.name, Exactly: exactly})
	}
	return spec
}

// template makes a claim template and returns how a pod uses it.
func (s *spec) template(name string, requests ...request) corev1.PodResourceClaim {
	s.Helper()
	_, err := s.Client.ResourceV1().ResourceClaimTemplates(s.namespace).Create(s.Context(), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(requests)},
	}, metav1.CreateOptions{})
	s.must(err)
	return corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &name}
}

// claim makes a claim, which several pods may use.
func (s *spec) claim(name string, requests ...request) corev1.PodResourceClaim {
	s.Helper()
	_, err := s.Client.ResourceV1().ResourceClaims(s.namespace).Create(s.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: claimSpec(requests),
	}, metav1.CreateOptions{})
	s.must(err)
	return corev1.PodResourceClaim{Name: name, ResourceClaimName: &name}
}

// share is a template for one share.
func (s *spec) share(memory string) corev1.PodResourceClaim {
	s.Helper()
	return s.template("gpu", request{name: "gpu", memory: memory})
}

// again is how a pod uses a template that was made before.
func (s *spec) again(name string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &name}
}

// cuda is a container that takes all memory it can get and holds it.
func cuda(name string, args ...string) corev1.Container {
	return container(name, append([]string{workload.Program, "--hold"}, args...)...)
}

// idle is a container in which a spec runs programs. To scenario.Holding it is one that holds nothing.
func idle(name string) corev1.Container {
	return container(name, "sh", "-c", `echo '{"event": "holding"}'; exec sleep 1000000`)
}

func container(name string, command ...string) corev1.Container {
	return corev1.Container{Name: name, Image: scenario.WorkloadImage, ImagePullPolicy: corev1.PullNever, Command: command}
}

// start makes a pod on the spec's node. Containers that do not name claims have them all. A claim without a name is none.
func (s *spec) start(name string, claim corev1.PodResourceClaim, containers ...corev1.Container) {
	s.Helper()
	// The ledger remembers containers by the name of their pod.
	if used, err := s.Hardware(s.node, name); err != nil || len(used) > 0 {
		s.Fatalf("node %s has had a pod named %s, choose another name (%v)", s.node, name, err)
	}
	var claims []corev1.PodResourceClaim
	if claim.Name != "" {
		claims = append(claims, claim)
	}
	for i := range containers {
		if containers[i].Resources.Claims == nil && claims != nil {
			containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: claim.Name}}
		}
	}
	_, err := s.Client.CoreV1().Pods(s.namespace).Create(s.Context(), s.podOf(name, claims, containers...), metav1.CreateOptions{})
	s.must(err)
}

// podOf is a pod for the spec's node.
func (s *spec) podOf(name string, claims []corev1.PodResourceClaim, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: s.node},
			RestartPolicy:                 cmp.Or(s.restart, corev1.RestartPolicyNever),
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			AutomountServiceAccountToken:  ptr.To(false),
			ResourceClaims:                claims,
			Containers:                    containers,
		},
	}
}

// remove deletes a pod and waits until it is gone.
func (s *spec) remove(name string) {
	s.Helper()
	_, err := s.Kubectl(s.Context(), "delete", "pod", "--namespace", s.namespace, name, "--timeout", "2m")
	s.must(err)
}

// pod reads a pod.
func (s *spec) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return s.Client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
}

// notStarted checks that no container of a pod was ever started.
func (s *spec) notStarted(name string) {
	s.Helper()
	pod, err := s.pod(s.Context(), name)
	s.must(err)
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting == nil {
			s.Errorf("container %s of %s was started: %+v", status.Name, name, status.State)
		}
	}
}
