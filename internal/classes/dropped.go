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

	"aliquot.dev/aliquot/internal/admission"
	"aliquot.dev/aliquot/internal/inventory"
)

// ReasonFieldsDropped is the reason of the Event on a node of whose slices the API server dropped fields.
const ReasonFieldsDropped = "FieldsDropped"

var dropped = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "aliquot_slice_fields_dropped",
	Help: "1 where the API server dropped fields of a node's slices, because a feature gate is off.",
}, []string{"node", "feature_gate"})

// Slices reads the slices of nodes back: what a feature gate guards, an API server without it drops in silence.
type Slices struct {
	cluster  admission.Cluster
	recorder events.EventRecorder
	// told is what was last said of each node. Only Reconcile uses it, one at a time.
	told map[string][]inventory.Gate
}

// NewSlices returns a reconciler by node.
func NewSlices(cluster admission.Cluster, recorder events.EventRecorder) *Slices {
	return &Slices{cluster: cluster, recorder: recorder, told: map[string][]inventory.Gate{}}
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
	off := inventory.Dropped(slices.DeleteFunc(slices.Clone(published), func(slice resourceapi.ResourceSlice) bool {
		return ptr.Deref(slice.Spec.NodeName, "") != node
	}))
	for _, gate := range []inventory.Gate{inventory.ConsumableCapacity, inventory.PartitionableDevices} {
		if slices.Contains(off, gate) {
			dropped.WithLabelValues(node, gate.Name).Set(1)
		} else {
			dropped.DeleteLabelValues(node, gate.Name)
		}
	}
	for _, gate := range off {
		if !slices.Contains(s.told[node], gate) {
			s.tell(node, gate)
		}
	}
	s.told[node] = off
	if len(off) == 0 {
		delete(s.told, node)
	}
	return reconcile.Result{}, nil
}

func (s *Slices) tell(node string, gate inventory.Gate) {
	// The UID is the name, as in the kubelet's Events: `kubectl describe node` looks for that.
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	record(s.recorder, about, corev1.EventTypeWarning, ReasonFieldsDropped, "ReadBack", fmt.Sprintf(
		"the API server dropped fields of this node's ResourceSlices: %s. Turn on the feature gate %s in kube-apiserver and kube-scheduler", gate.Lost, gate.Name))
}
