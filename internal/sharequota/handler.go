package sharequota

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// After lets a claim in, or looks at a template, once other checks have passed it: the API server calls webhooks side by
// side, and a claim that another one refuses would keep its reservation for a while. Where it cannot ask the API server it
// warns and lets pass; the reconciler counts the claim then.
func (l *Ledger) After(checks webhook.Handler) webhook.Handler {
	return webhook.HandlerFunc(func(ctx context.Context, request webhook.Request) webhook.Response {
		response := checks.Handle(ctx, request)
		if !response.Allowed || request.Operation != admissionv1.Create || request.SubResource != "" {
			return response
		}
		err := l.admit(ctx, request)
		var refusal Refusal
		switch {
		case errors.As(err, &refusal):
			return webhook.Denied(refusal.Error()).WithWarnings(response.Warnings...)
		case err != nil:
			failures.Inc()
			klog.FromContext(ctx).Error(err, "A claim passes uncounted", "namespace", request.Namespace, "name", request.Name)
			return response.WithWarnings("not checked against the namespace's ShareQuotas: " + err.Error())
		}
		return response
	})
}

func (l *Ledger) admit(ctx context.Context, request webhook.Request) error {
	switch request.Kind.Kind {
	case "ResourceClaim":
		var claim resourceapi.ResourceClaim
		if err := decoder.Decode(request, &claim); err != nil {
			return fmt.Errorf("decode the claim: %w", err)
		}
		claim.Namespace = request.Namespace
		return l.Reserve(ctx, &claim, ptr.Deref(request.DryRun, false))
	case "ResourceClaimTemplate":
		var template resourceapi.ResourceClaimTemplate
		if err := decoder.Decode(request, &template); err != nil {
			return fmt.Errorf("decode the template: %w", err)
		}
		template.Namespace = request.Namespace
		return l.Fits(ctx, &template)
	}
	return fmt.Errorf("a %s is no claim", request.Kind.Kind)
}

var decoder = func() webhook.Decoder {
	scheme := runtime.NewScheme()
	if err := resourceapi.AddToScheme(scheme); err != nil {
		panic(err) // two types of one name: seen by whoever runs it once
	}
	return webhook.NewDecoder(scheme)
}()
