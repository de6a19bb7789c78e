package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// The paths at which the webhooks are served.
const (
	PathValidateClass = "/validate-deviceclass"
	PathValidateClaim = "/validate-claim"
	PathDefaultClaim  = "/default-claim"
)

// Handlers are the webhooks by their paths. None of them keeps an object out because of a failure of its own: the node
// checks all of this again.
func Handlers(c *Checker) map[string]webhook.Handler {
	return map[string]webhook.Handler{
		PathValidateClass: handler{name: "validate-deviceclass", handle: c.validateClass},
		PathValidateClaim: handler{name: "validate-claim", handle: c.validateClaim},
		PathDefaultClaim:  handler{name: "default-claim", handle: c.defaultClaim},
	}
}

// handler lets pass what is not to be looked at, and whatever it fails on.
type handler struct {
	name   string
	handle func(context.Context, webhook.Request) (webhook.Response, error)
}

var _ webhook.Handler = handler{}

// Handle implements webhook.Handler.
func (h handler) Handle(ctx context.Context, request webhook.Request) (response webhook.Response) {
	defer func() {
		if r := recover(); r != nil {
			response = h.failed(ctx, webhook.Allowed(""), fmt.Errorf("panic: %v", r))
		}
		handled.WithLabelValues(h.name, outcome(response)).Inc()
	}()
	if request.SubResource != "" || request.Operation != admissionv1.Create && request.Operation != admissionv1.Update {
		return webhook.Allowed("")
	}
	response, err := h.handle(ctx, request)
	if err != nil {
		return h.failed(ctx, response, err)
	}
	return response
}

// failed says so to who applies the object, to whoever reads logs, and to whoever watches metrics.
func (h handler) failed(ctx context.Context, response webhook.Response, err error) webhook.Response {
	failures.WithLabelValues(h.name).Inc()
	klog.FromContext(ctx).Error(err, "An object passes with checks left out", "webhook", h.name)
	if !response.Allowed && response.Result != nil { // enough was found before
		return response
	}
	response.Allowed = true
	return response.WithWarnings(clip("not checked by Aliquot before it is scheduled: "+err.Error(), 200))
}

func outcome(r webhook.Response) string {
	switch {
	case !r.Allowed:
		return "denied"
	case len(r.Patch) > 0:
		return "defaulted"
	case len(r.Warnings) > 0:
		return "warned"
	}
	return "allowed"
}

func (c *Checker) validateClass(ctx context.Context, request webhook.Request) (webhook.Response, error) {
	var object, old resourceapi.DeviceClass
	if err := decode(request, &object, &old); err != nil {
		return webhook.Response{}, err
	}
	if request.Operation == admissionv1.Update && equality.Semantic.DeepEqual(object.Spec, old.Spec) {
		return webhook.Allowed(""), nil
	}
	return c.Class(ctx, &object).response(), nil
}

func (c *Checker) validateClaim(ctx context.Context, request webhook.Request) (webhook.Response, error) {
	object, err := claimIn(request)
	if err != nil || object.unchanged {
		return webhook.Allowed(""), err
	}
	found, err := c.Claim(ctx, object.spec, object.path)
	return found.response(), err
}

func (c *Checker) defaultClaim(ctx context.Context, request webhook.Request) (webhook.Response, error) {
	object, err := claimIn(request)
	if err != nil || object.unchanged || object.scheduled {
		return webhook.Allowed(""), err
	}
	before := object.spec.DeepCopy()
	if err := c.Default(ctx, object.spec); err != nil {
		return webhook.Allowed(""), err
	}
	response := webhook.Allowed("")
	patch := patches(before, object.spec, object.path)
	if len(patch) == 0 {
		return response, nil
	}
	if response.Patch, err = json.Marshal(patch); err != nil {
		return webhook.Allowed(""), fmt.Errorf("marshal defaults: %w", err)
	}
	kind := admissionv1.PatchTypeJSONPatch
	response.PatchType = &kind
	return response, nil
}

// response tells the errors, one a line, or the warnings.
func (f Findings) response() webhook.Response {
	if len(f.Errors) == 0 {
		return webhook.Allowed("").WithWarnings(f.Warnings...)
	}
	lines := make([]string, len(f.Errors))
	for i, err := range f.Errors {
		lines[i] = err.Error()
	}
	return webhook.Denied(strings.Join(lines, "\n")).WithWarnings(f.Warnings...)
}

// claim is what a ResourceClaim or a ResourceClaimTemplate asks for.
type claim struct {
	spec      *resourceapi.ResourceClaimSpec
	path      *field.Path
	unchanged bool
	// scheduled marks a claim that the scheduler made for a pod with extended resources. It is allocated already, as it
	// stands (EnsureExtendedResourceClaim of k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources).
	scheduled bool
}

func claimIn(request webhook.Request) (claim, error) {
	update := request.Operation == admissionv1.Update
	switch request.Kind.Kind {
	case "ResourceClaim":
		var object, old resourceapi.ResourceClaim
		err := decode(request, &object, &old)
		return claim{
			spec: &object.Spec, path: field.NewPath("spec"),
			unchanged: update && equality.Semantic.DeepEqual(object.Spec, old.Spec),
			scheduled: object.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true",
		}, err
	case "ResourceClaimTemplate":
		var object, old resourceapi.ResourceClaimTemplate
		err := decode(request, &object, &old)
		return claim{
			spec: &object.Spec.Spec, path: field.NewPath("spec", "spec"),
			unchanged: update && equality.Semantic.DeepEqual(object.Spec.Spec, old.Spec.Spec),
		}, err
	}
	return claim{}, fmt.Errorf("a %s is no claim", request.Kind.Kind)
}

var decoder = func() webhook.Decoder {
	scheme := runtime.NewScheme()
	if err := resourceapi.AddToScheme(scheme); err != nil {
		panic(err) // two types of one name: seen by whoever runs it once
	}
	return webhook.NewDecoder(scheme)
}()

func decode(request webhook.Request, object, old runtime.Object) error {
	if err := decoder.Decode(request, object); err != nil {
		return fmt.Errorf("decode the object: %w", err)
	}
	if request.Operation != admissionv1.Update {
		return nil
	}
	if err := decoder.DecodeRaw(request.OldObject, old); err != nil {
		return fmt.Errorf("decode the object as it was: %w", err)
	}
	return nil
}
