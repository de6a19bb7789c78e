//go:build e2e

package specs_test

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/workload"
)

// block is the granularity of the simulated hardware, as of the real one: 2 MiB.
const block = 2 << 20

// request is one request of a claim for a share.
type request struct{ name, memory, cores string }

func claimSpec(requests []request) resourceapi.ResourceClaimSpec {
	var spec resourceapi.ResourceClaimSpec
	for _, r := range requests {
		capacity := map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapacityMemory: resource.MustParse(r.memory)}
		if r.cores != "" {
			capacity[v1alpha1.CapacityCores] = resource.MustParse(r.cores)
		}
		spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: r.name,
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "share.gpu.aliquot.dev",
				Capacity:        &resourceapi.CapacityRequirements{Requests: capacity},
			},
		})
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

// start makes a pod on the spec's node. Containers that do not name claims have them all.
func (s *spec) start(name string, claim corev1.PodResourceClaim, containers ...corev1.Container) {
	s.Helper()
	// The ledger remembers containers by the name of their pod.
	if used, err := s.Hardware(s.node, name); err != nil || len(used) > 0 {
		s.Fatalf("node %s has had a pod named %s, choose another name (%v)", s.node, name, err)
	}
	for i := range containers {
		if containers[i].Resources.Claims == nil {
			containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: claim.Name}}
		}
	}
	_, err := s.Client.CoreV1().Pods(s.namespace).Create(s.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: s.node},
			RestartPolicy:                 cmp.Or(s.restart, corev1.RestartPolicyNever),
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			AutomountServiceAccountToken:  ptr.To(false),
			ResourceClaims:                []corev1.PodResourceClaim{claim},
			Containers:                    containers,
		},
	}, metav1.CreateOptions{})
	s.must(err)
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

// bytes reads a quantity.
func bytesOf(quantity string) uint64 {
	q := resource.MustParse(quantity)
	return uint64(q.Value())
}

// reachable is what can be allocated of a quota in the hardware's blocks.
func reachable(quota string) uint64 {
	return bytesOf(quota) / block * block
}

// held waits until the pod's containers hold what they could get, and checks that it is exactly their quotas, in the
// order of containers: by what they saw, by what they got, and by the hardware's own ledger.
func (s *spec) held(name string, quotas ...string) []scenario.Program {
	s.Helper()
	programs, err := s.Holding(s.Context(), s.namespace, name, 1)
	s.must(err)
	if len(programs) != len(quotas) {
		s.Fatalf("pod %s has %d containers, want %d", name, len(programs), len(quotas))
	}
	var want, peaks []uint64
	for i, p := range programs {
		if p.Shown() != bytesOf(quotas[i]) {
			s.Errorf("container %s of %s is shown %d bytes, its share is %s", p.Container, name, p.Shown(), quotas[i])
		}
		if p.Got() != reachable(quotas[i]) {
			s.Errorf("container %s of %s got %d bytes, its share is %s", p.Container, name, p.Got(), quotas[i])
		}
		want = append(want, reachable(quotas[i]))
	}
	usages, err := s.Hardware(s.node, name)
	s.must(err)
	for _, usage := range usages {
		var peak uint64
		for _, gpu := range usage {
			peak += gpu.Peak
		}
		peaks = append(peaks, peak)
	}
	slices.Sort(want)
	slices.Sort(peaks)
	if !slices.Equal(peaks, want) {
		s.Errorf("the hardware gave the containers of %s %d bytes at most, want %d", name, peaks, want)
	}
	return programs
}

// stillHeld checks a pod that held its share before: its container was not started anew, has what it had, and another
// process in it gets nothing more.
func (s *spec) stillHeld(name, quota string) {
	s.Helper()
	pod, err := s.pod(s.Context(), name)
	s.must(err)
	if pod.Status.Phase != corev1.PodRunning || scenario.Restarts(*pod) > 0 {
		s.Fatalf("pod %s is %s and was restarted %d times", name, pod.Status.Phase, scenario.Restarts(*pod))
	}
	usages, err := s.Hardware(s.node, name)
	s.must(err)
	var used uint64
	for _, usage := range usages {
		for _, gpu := range usage {
			used += gpu.Used
		}
	}
	if used != reachable(quota) {
		s.Errorf("pod %s holds %d bytes, want %d", name, used, reachable(quota))
	}
	if got := s.alloc(name, pod.Spec.Containers[0].Name); got != 0 {
		s.Errorf("pod %s holds its share and got %d bytes more", name, got)
	}
}

// exec runs a program in a container.
func (s *spec) exec(pod, container string, argv ...string) (string, error) {
	args := append([]string{"exec", "--namespace", s.namespace, pod, "--container", container, "--"}, argv...)
	return s.Kubectl(s.Context(), args...)
}

// alloc runs one more process in a container, which takes what it can and ends, and returns the bytes that it got.
func (s *spec) alloc(pod, container string, args ...string) (got uint64) {
	s.Helper()
	output, err := s.exec(pod, container, append([]string{workload.Program}, args...)...)
	if err != nil {
		s.Fatalf("%v\n%s", err, output)
	}
	events, err := workload.Events([]byte(output))
	s.must(err)
	allocated := workload.Select(events, "allocated")
	if len(allocated) == 0 {
		s.Fatalf("%s in container %s of %s said nothing of what it got:\n%s", workload.Program, container, pod, output)
	}
	for _, e := range allocated {
		got += e.Bytes
	}
	return got
}

// background runs a program in a container until it holds what it got, and returns its pid there; wait returns when it
// has ended.
func (s *spec) background(pod, container string) (pid int, wait func()) {
	s.Helper()
	cmd := s.Command(s.Context(), "kubectl", "exec", "--namespace", s.namespace, pod, "--container", container, "--", workload.Program, "--hold")
	var output lines
	cmd.Stdout, cmd.Stderr = &output, &output
	s.must(cmd.Start())
	s.eventually("a program in pod "+pod+" holds its memory", func(context.Context) (bool, error) {
		events, err := workload.Events(output.text())
		if err != nil {
			return false, err
		}
		holding := workload.Select(events, "holding")
		if len(holding) == 0 {
			return false, fmt.Errorf("it printed %s", output.text())
		}
		pid = holding[0].PID
		return true, nil
	})
	return pid, func() { s.ended(cmd) }
}

func (s *spec) ended(cmd *exec.Cmd) {
	s.Helper()
	if err := cmd.Wait(); err == nil {
		s.Errorf("%s ended well, want it killed", strings.Join(cmd.Args, " "))
	}
}

// events are what was said of an object, newest last.
func (s *spec) events(ctx context.Context, namespace, kind, name string) ([]string, error) {
	list, err := s.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	if err != nil {
		return nil, err
	}
	var events []string
	for _, e := range list.Items {
		events = append(events, e.Reason+": "+e.Message)
	}
	return events, nil
}

// told waits until an Event of the pod says all of the given words.
func (s *spec) told(pod string, words ...string) {
	s.Helper()
	s.eventOf(s.namespace, "Pod", pod, words...)
}

// nodeTold waits until an Event of the spec's node says all of the given words.
func (s *spec) nodeTold(words ...string) {
	s.Helper()
	s.eventOf(metav1.NamespaceDefault, "Node", s.node, words...)
}

func (s *spec) eventOf(namespace, kind, name string, words ...string) {
	s.Helper()
	s.eventually(fmt.Sprintf("an Event of %s %s says %q", kind, name, words), func(ctx context.Context) (bool, error) {
		events, err := s.events(ctx, namespace, kind, name)
		if err != nil {
			return false, err
		}
		for _, event := range events {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(event, word) }) {
				return true, nil
			}
		}
		return false, fmt.Errorf("its Events: %s", strings.Join(events, "\n"))
	})
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
