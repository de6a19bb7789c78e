// Package scenario is what the demo and the end-to-end tests do alike: it starts an embedded cluster with simulated
// GPUs and Aliquot on it, runs CUDA programs in pods, and tells what they were shown, what they got and what the
// hardware says of it. It judges nothing.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/cluster/image"
	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/simdriver"
	"aliquot.dev/aliquot/e2e/simrun"
	"aliquot.dev/aliquot/e2e/workload"
)

// WorkloadImage has cuda-alloc, BusyProgram and a shell.
const WorkloadImage = "aliquot.test/cuda-alloc:latest"

// BusyProgram launches kernels, see e2e/simrun/native/tenant.c.
const BusyProgram = "cuda-busy"

// Patience is how long a condition may take to come true before it counts as never. It bounds failures; nothing is
// measured by it.
const Patience = 2 * time.Minute

const pollEvery = 100 * time.Millisecond

// World is a cluster with Aliquot on it.
type World struct {
	*cluster.Cluster
	Client kubernetes.Interface
}

// Node asks for a node with the GPUs of a shipped description.
type Node struct {
	Name     string
	Hardware string
	Labels   map[string]string
}

// Start brings up a cluster and installs Aliquot, with further helm arguments if any. The caller stops it.
func Start(ctx context.Context, log io.Writer, nodes []Node, helm ...string) (*World, error) {
	config := cluster.Config{Log: log}
	for _, n := range nodes {
		node := cluster.Node{Name: n.Name, Labels: release.NodeLabels()}
		for key, value := range n.Labels {
			node.Labels[key] = value
		}
		hardware, err := simdriver.Load(n.Hardware)
		if err != nil {
			return nil, err
		}
		node.Hardware = &hardware
		config.Nodes = append(config.Nodes, node)
	}
	c, err := cluster.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	w, err := Install(ctx, log, c, helm...)
	if err != nil {
		w.dump(log)
		return nil, errors.Join(err, c.Stop())
	}
	return w, nil
}

// Install puts Aliquot and the CUDA test program onto a cluster that runs, and waits until it serves. The world is
// returned also with an error.
func Install(ctx context.Context, log io.Writer, c *cluster.Cluster, helm ...string) (*World, error) {
	w := &World{Cluster: c}
	return w, w.install(ctx, log, helm)
}

func (w *World) install(ctx context.Context, log io.Writer, helm []string) error {
	config, err := w.RESTConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // asks often and waits for nobody
	if w.Client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	fmt.Fprintln(log, "building the image of the CUDA test program")
	if err := w.addWorkload(ctx); err != nil {
		return err
	}
	fmt.Fprintln(log, "installing the chart with helm")
	if err := release.Install(ctx, w.Cluster, helm...); err != nil {
		return err
	}
	return w.waitForSlices(ctx)
}

// dump leaves what explains a failure beside what was printed.
func (w *World) dump(log io.Writer) {
	dir, err := os.MkdirTemp("", "aliquot-logs-")
	if err == nil {
		err = w.DumpLogs(context.Background(), dir)
	}
	fmt.Fprintln(log, "logs of the failed cluster:", dir, err)
}

// addWorkload compiles cuda-alloc against the simulated driver's SONAMEs; it runs with whatever driver a pod has.
func (w *World) addWorkload(ctx context.Context) error {
	root, err := w.Driver(w.Nodes()[0])
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "aliquot-workload-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := workload.Build(ctx, dir, root.LibraryDir())
	if err != nil {
		return err
	}
	busy := filepath.Join(dir, BusyProgram)
	if err := simrun.BuildTenant(ctx, busy); err != nil {
		return err
	}
	tree := image.BaseTree().File(filepath.Join("/usr/bin", workload.Program), program).File(filepath.Join("/usr/bin", BusyProgram), busy)
	return w.AddImage(ctx, image.Image{Name: WorkloadImage, Root: tree})
}

// waitForSlices waits until every node's GPUs are published.
func (w *World) waitForSlices(ctx context.Context) error {
	return Eventually(ctx, "the GPUs of all nodes are published", func(ctx context.Context) (bool, error) {
		slices, err := w.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		published := map[string]bool{}
		for _, slice := range slices.Items {
			if slice.Spec.NodeName != nil {
				published[*slice.Spec.NodeName] = true
			}
		}
		return len(published) == len(w.Nodes()), nil
	})
}

// Eventually waits until a condition holds. The error of one that never does names it.
func Eventually(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	return Within(ctx, Patience, what, condition)
}

// Within is Eventually with another patience.
func Within(ctx context.Context, patience time.Duration, what string, condition func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollEvery, patience, true, func(ctx context.Context) (bool, error) {
		var done bool
		done, last = condition(ctx)
		var ended *endedError
		if errors.As(last, &ended) {
			return false, last
		}
		return done && last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait until %s: %w", what, errors.Join(err, last))
	}
	return nil
}

// endedError says that waiting on is of no use.
type endedError struct{ error }

// Program is what one container's cuda-alloc printed.
type Program struct {
	Namespace, Pod, Container string
	Node                      string
	Events                    []workload.Event
}

// Shown is the total memory that the program saw of its devices, in bytes.
func (p Program) Shown() (bytes uint64) {
	seen := map[string]bool{}
	for _, e := range workload.Select(p.Events, "device") {
		if !seen[e.UUID] {
			bytes += e.Total
		}
		seen[e.UUID] = true
	}
	return bytes
}

// Got is the memory that all processes of the program were granted, in bytes.
func (p Program) Got() (bytes uint64) {
	for _, e := range workload.Select(p.Events, "allocated") {
		bytes += e.Bytes
	}
	return bytes
}

// GPUs are the UUIDs of the devices that the program saw.
func (p Program) GPUs() []string {
	var uuids []string
	seen := map[string]bool{}
	for _, e := range workload.Select(p.Events, "device") {
		if !seen[e.UUID] {
			uuids = append(uuids, e.UUID)
		}
		seen[e.UUID] = true
	}
	return uuids
}

// Holding waits until all containers of a pod have taken what they could and hold it: each with the given number of
// processes.
func (w *World) Holding(ctx context.Context, namespace, pod string, processes int) ([]Program, error) {
	var programs []Program
	err := Eventually(ctx, fmt.Sprintf("pod %s/%s holds its memory", namespace, pod), func(ctx context.Context) (bool, error) {
		programs = nil
		p, err := w.Client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, status := range p.Status.ContainerStatuses {
			if status.State.Terminated != nil {
				return false, &endedError{fmt.Errorf("container %s ended with status %d:\n%s", status.Name, status.State.Terminated.ExitCode, w.logs(ctx, p, status.Name))}
			}
		}
		for _, container := range p.Spec.Containers {
			log := w.logs(ctx, p, container.Name)
			events, err := workload.Events([]byte(log))
			if err != nil {
				return false, err
			}
			if len(workload.Select(events, "holding")) != processes {
				return false, fmt.Errorf("pod is %s, container %s printed: %s", p.Status.Phase, container.Name, log)
			}
			programs = append(programs, Program{Namespace: namespace, Pod: pod, Container: container.Name, Node: p.Spec.NodeName, Events: events})
		}
		return true, nil
	})
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, w.Explain(ctx, namespace, pod))
	}
	return programs, err
}

func (w *World) logs(ctx context.Context, pod *corev1.Pod, container string) string {
	log, err := w.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return err.Error()
	}
	return string(log)
}

// Explain is what an admin would look at when a pod does not do what it should.
func (w *World) Explain(ctx context.Context, namespace, pod string) string {
	ctx = context.WithoutCancel(ctx)
	describe, _ := w.Kubectl(ctx, "describe", "pod", "--namespace", namespace, pod)
	claims, _ := w.Kubectl(ctx, "get", "resourceclaims", "--namespace", namespace, "--output", "yaml")
	plugin, _ := w.Kubectl(ctx, "logs", "--namespace", release.Namespace, "--tail", "20", "daemonset/"+release.DaemonSet)
	return strings.Join([]string{describe, claims, plugin}, "\n")
}

// Unschedulable waits until the scheduler has said that a pod fits nowhere, and returns its words.
func (w *World) Unschedulable(ctx context.Context, namespace, pod string) (string, error) {
	var message string
	err := Eventually(ctx, fmt.Sprintf("pod %s/%s is unschedulable", namespace, pod), func(ctx context.Context) (bool, error) {
		p, err := w.Client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled {
				message = condition.Message
				return condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable, nil
			}
		}
		return false, nil
	})
	return message, err
}

// Delete removes a namespace and waits until it is gone.
func (w *World) Delete(ctx context.Context, namespace string) error {
	_, err := w.Kubectl(ctx, "delete", "namespace", namespace, "--wait", "--timeout", "2m")
	return err
}
