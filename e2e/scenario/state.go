package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/release"
)

// Places on a node.
const (
	PluginData = "/var/lib/kubelet/plugins/" + v1alpha1.DriverName
	RecordsDir = PluginData + "/claims"
	MarksDir   = PluginData + "/partitions"
	SharesDir  = "/run/aliquot/shares"
	SpecsDir   = "/run/cdi" // of which /var/run/cdi is another name
	DriverRoot = "/run/nvidia/driver"
)

// Record is what the plugin remembers of a claim, as far as tests ask.
type Record struct {
	UID, Namespace, Name string
	Allocations          []Allocation
}

// Allocation is a share, or a whole GPU, in a record.
type Allocation struct {
	GPU       string
	Partition *struct {
		Profile   string
		Placement struct{ Start, Size int }
	}
	Limits struct {
		Whole       bool
		MemoryBytes uint64
		CorePercent int
	}
}

// Limited says whether one of the record's allocations is a share of a GPU and not a whole one.
func (r Record) Limited() bool {
	for _, a := range r.Allocations {
		if !a.Limits.Whole {
			return true
		}
	}
	return false
}

// Marks are those of the partitions that a record names, whoever made them.
func (r Record) Marks() (marks []string) {
	for _, a := range r.Allocations {
		if p := a.Partition; p != nil {
			marks = append(marks, fmt.Sprintf("%s_%d_%d_%s", a.GPU, p.Placement.Start, p.Placement.Size, p.Profile))
		}
	}
	return marks
}

// State is what a node has on disk of the claims that are prepared on it.
type State struct {
	Records       []Record
	Specs, Shares []string // UIDs of claims
	Marks         []string // of partitions that the plugin made, as Record.Marks has them
	Other         []string // files where only the above should be
}

// State reads what a node has of claims.
func (w *World) State(node string) (State, error) {
	root, err := w.NodeRoot(node)
	if err != nil {
		return State{}, err
	}
	var s State
	if err := s.readRecords(filepath.Join(root, RecordsDir)); err != nil {
		return State{}, err
	}
	specs, err := names(filepath.Join(root, SpecsDir))
	for _, name := range specs {
		uid, ours := strings.CutPrefix(name, v1alpha1.DriverName+"-share_")
		if uid, whole := strings.CutSuffix(uid, ".json"); ours && whole {
			s.Specs = append(s.Specs, uid)
		}
	}
	var errShares, errMarks error
	s.Shares, errShares = names(filepath.Join(root, SharesDir))
	s.Marks, errMarks = names(filepath.Join(root, MarksDir))
	return s, errors.Join(err, errShares, errMarks)
}

// readRecords reads the records that are there, one after the other.
func (s *State) readRecords(dir string) error {
	files, err := names(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return err
		}
		if !strings.HasSuffix(file, ".json") {
			s.Other = append(s.Other, filepath.Join(RecordsDir, file))
			continue
		}
		var r Record
		if err := json.Unmarshal(content, &r); err != nil {
			s.Other = append(s.Other, fmt.Sprintf("record that is none, %q: %v", content, err))
			continue
		}
		s.Records = append(s.Records, r)
	}
	return nil
}

// names are those of the files in a directory, which need not be there.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	found := make([]string, len(entries))
	for i, entry := range entries {
		found[i] = entry.Name()
	}
	return found, err
}

// Plugin is the plugin's pod on a node, the one that is not being deleted.
func (w *World) Plugin(ctx context.Context, node string) (corev1.Pod, error) {
	pods, err := w.Client.CoreV1().Pods(release.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=kubelet-plugin", FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return corev1.Pod{}, err
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			return pod, nil
		}
	}
	return corev1.Pod{}, fmt.Errorf("node %s has no pod of the plugin", node)
}

// KillPlugin kills the plugin's process on a node, as the kernel does when memory is short.
func (w *World) KillPlugin(ctx context.Context, node string) error {
	_, err := w.OnNode(ctx, node, "sh", "-c", "kill -9 $(pidof aliquot-kubelet-plugin)")
	return err
}

// Restarts is how often a pod's containers were started anew.
func Restarts(pod corev1.Pod) (restarts int32) {
	for _, status := range pod.Status.ContainerStatuses {
		restarts += status.RestartCount
	}
	return restarts
}

// Ready says whether a pod is.
func Ready(pod corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
