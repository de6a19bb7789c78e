package classes

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/admission"
)

// ReasonFieldsDropped is the reason of the Event on a node of whose slices the API server dropped fields.
const ReasonFieldsDropped = "FieldsDropped"

// The feature gates whose fields every node's slices have, and what is lost without them.
const (
	consumableCapacity = "DRAConsumableCapacity"
	partitionable      = "DRAPartitionableDevices"
)

var lost = map[string]string{
	consumableCapacity: "GPUs cannot be shared, each claim takes a whole one",
	partitionable:      "the scheduler gives out a GPU and its MIG partitions at once, which the node then refuses",
}

var dropped = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "aliquot_slice_fields_dropped",
	Help: "1 where the API server dropped fields of a node's slices, because a feature gate is off.",
}, []string{"node", "feature_gate"})

// Slices reads the slices of nodes back: what a feature gate guards, an API server without it drops in silence.
type Slices struct {
	cluster  admission.Cluster
	recorder events.EventRecorder
	// told is what was last said of each node. Only Reconcile uses it, one at a time.
	told map[string][]string
}

// NewSlices returns a reconciler by node.
func NewSlices(cluster admission.Cluster, recorder events.EventRecorder) *Slices {
	return &Slices{cluster: cluster, recorder: recorder, told: map[string][]string{}}
}

// SetupWithManager adds the reconciler to a manager.
func (s *Slices) SetupWithManager(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).
		Named("resourceslice").
		Watches(&resourceapi.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
			slice, ok := object.(*resourceapi.ResourceSlice)
			if !ok || slice.Spec.NodeName == nil {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: *slice.Spec.NodeName}}}
		})).
		Complete(s)
}

// Reconcile looks at the slices of one node.
func (s *Slices) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	published, err := s.cluster.Slices(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("list ResourceSlices: %w", err)
	}
	node := request.Name
	gates := missing(slices.DeleteFunc(slices.Clone(published), func(slice resourceapi.ResourceSlice) bool {
		return ptr.Deref(slice.Spec.NodeName, "") != node
	}))
	for gate := range lost {
		if slices.Contains(gates, gate) {
			dropped.WithLabelValues(node, gate).Set(1)
		} else {
			dropped.DeleteLabelValues(node, gate)
		}
	}
	for _, gate := range gates {
		if !slices.Contains(s.told[node], gate) {
			s.tell(node, gate)
		}
	}
	s.told[node] = gates
	if len(gates) == 0 {
		delete(s.told, node)
	}
	return reconcile.Result{}, nil
}

func (s *Slices) tell(node, gate string) {
	// The UID is the name, as in the kubelet's Events: `kubectl describe node` looks for that.
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	record(s.recorder, about, corev1.EventTypeWarning, ReasonFieldsDropped, "ReadBack", fmt.Sprintf(
		"the API server dropped fields of this node's ResourceSlices: %s. Turn on the feature gate %s in kube-apiserver and kube-scheduler", lost[gate], gate))
}

// missing names the gates that are off, as a node's slices tell. Every device of ours may be allocated many times, and
// every partition that is not an administrator's draws on its GPU's counters.
func missing(published []resourceapi.ResourceSlice) []string {
	var gates []string
	add := func(gate string, off bool) {
		if off && !slices.Contains(gates, gate) {
			gates = append(gates, gate)
		}
	}
	for i := range published {
		for _, device := range published[i].Spec.Devices {
			add(consumableCapacity, !ptr.Deref(device.AllowMultipleAllocations, false))
			attribute := func(name resourceapi.QualifiedName) string {
				return ptr.Deref(device.Attributes[name].StringValue, "")
			}
			empty := attribute(v1alpha1.AttributeType) == v1alpha1.TypeMIG && attribute(v1alpha1.AttributeUUID) == ""
			add(partitionable, empty && len(device.ConsumesCounters) == 0)
		}
	}
	slices.Sort(gates)
	return gates
}
