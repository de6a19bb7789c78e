// Package classes tells what no admission could: of device classes that were there before it, or were made while it was
// away, and of what the API server dropped of the nodes' slices. It changes neither.
package classes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/internal/admission"
)

// The reasons of the Events on a class.
const (
	ReasonInvalid   = "InvalidClass"
	ReasonValid     = "ValidClass"
	ReasonUnchecked = "ClaimsUnchecked"
)

var classErrors = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "aliquot_deviceclass_errors",
	Help: "What is wrong with a device class of this driver: claims of it fail, or stay pending.",
}, []string{"deviceclass"})

func init() {
	metrics.Registry.MustRegister(classErrors, dropped)
}

// Reconciler checks device classes whenever they change, and once at the start.
type Reconciler struct {
	client   client.Reader
	checker  *admission.Checker
	recorder events.EventRecorder
	// sent says whether the webhooks are asked about claims that name a class.
	sent func(class string) bool
	// told is what was last said of each class, so that each thing is said once. Only Reconcile uses it, one at a time.
	told map[string]string
}

// New returns a reconciler. reader is a cache; sent says of which classes the webhooks see claims.
func New(reader client.Reader, checker *admission.Checker, recorder events.EventRecorder, sent func(class string) bool) *Reconciler {
	return &Reconciler{client: reader, checker: checker, recorder: recorder, sent: sent, told: map[string]string{}}
}

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).Named("deviceclass").For(&resourceapi.DeviceClass{}).Complete(r)
}

// Reconcile checks one class.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var class resourceapi.DeviceClass
	err := r.client.Get(ctx, request.NamespacedName, &class)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("read device class %s: %w", request.Name, err)
	}
	if err != nil || !admission.Concerns(&class) {
		delete(r.told, request.Name)
		classErrors.DeleteLabelValues(request.Name)
		return reconcile.Result{}, nil
	}
	found := r.checker.Class(ctx, &class)
	classErrors.WithLabelValues(class.Name).Set(float64(len(found.Errors)))
	r.tell(&class, found)
	return reconcile.Result{}, nil
}

// tell records Events for what is new. The devices of the moment, which come and go, are left to admission's warnings.
func (r *Reconciler) tell(class *resourceapi.DeviceClass, found admission.Findings) {
	var lines []string
	for _, err := range found.Errors {
		lines = append(lines, err.Error())
	}
	slices.Sort(lines)
	text, before := strings.Join(lines, "\n"), r.told[class.Name]
	_, known := r.told[class.Name]
	r.told[class.Name] = text
	if known && text == before {
		return
	}
	for _, line := range lines {
		record(r.recorder, class, corev1.EventTypeWarning, ReasonInvalid, "Check", line)
	}
	if text == "" && before != "" {
		record(r.recorder, class, corev1.EventTypeNormal, ReasonValid, "Check", "nothing is wrong with this class any more")
	}
	if !known && !r.sent(class.Name) {
		record(r.recorder, class, corev1.EventTypeWarning, ReasonUnchecked, "Check", fmt.Sprintf(
			"claims of this class are checked by the nodes alone: let its name end in .%s, or add it to the chart's controller.deviceClasses", v1alpha1.DriverName))
	}
}
