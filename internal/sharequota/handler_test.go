package sharequota

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func requestOf(t *testing.T, kind string, object any) webhook.Request {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: "team-a", Object: runtime.RawExtension{Raw: raw},
		Kind: metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: kind},
	}}
}

func TestAfter(t *testing.T) {
	const tooMuch = `asks for 20Gi of GPU memory, ShareQuota "team-a" allows 10Gi in all of namespace team-a: ask for less`
	warned := webhook.HandlerFunc(func(context.Context, webhook.Request) webhook.Response {
		return webhook.Allowed("").WithWarnings("mind the gap")
	})
	refused := webhook.HandlerFunc(func(context.Context, webhook.Request) webhook.Response { return webhook.Denied("no such class") })
	template := &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimOf("a", "20Gi").Spec}}
	with := func(request webhook.Request, change func(*webhook.Request)) webhook.Request {
		change(&request)
		return request
	}
	tests := []struct {
		name         string
		checks       webhook.Handler
		request      webhook.Request
		want         string // why it is refused
		reservations int
	}{
		{name: "a claim that fits", checks: warned, request: requestOf(t, "ResourceClaim", claimOf("a", "10Gi")), reservations: 1},
		{name: "a claim that does not", checks: warned, request: requestOf(t, "ResourceClaim", claimOf("a", "20Gi")), want: tooMuch},
		{name: "a claim that the checks refuse", checks: refused, request: requestOf(t, "ResourceClaim", claimOf("a", "10Gi")), want: "no such class"},
		{name: "a dry run", checks: warned, request: with(requestOf(t, "ResourceClaim", claimOf("a", "10Gi")), func(r *webhook.Request) { r.DryRun = ptr.To(true) })},
		{name: "an update", checks: warned, request: with(requestOf(t, "ResourceClaim", claimOf("a", "20Gi")), func(r *webhook.Request) { r.Operation = admissionv1.Update })},
		{name: "a template that can never run", checks: warned, request: requestOf(t, "ResourceClaimTemplate", template), want: tooMuch},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c := store(t, quotaOf("team-a", "10Gi", 0))
			response := newLedger(c).After(tc.checks).Handle(t.Context(), tc.request)
			got := ""
			if !response.Allowed {
				got = response.Result.Message
			}
			if got != tc.want {
				t.Errorf("refused with %q, want %q", got, tc.want)
			}
			if tc.want != "no such class" && !slices.Equal(response.Warnings, []string{"mind the gap"}) {
				t.Errorf("the warnings are %q", response.Warnings)
			}
			if got := len(statusOf(t, c, "team-a").Reservations); got != tc.reservations {
				t.Errorf("%d reservations, want %d", got, tc.reservations)
			}
		})
	}
}

// A claim is not kept out because the API server does not answer; the reconciler counts it.
func TestAfterFailsOpen(t *testing.T) {
	c := interceptor.NewClient(store(t, quotaOf("team-a", "10Gi", 0)), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("etcd is away")
		},
	})
	passed := webhook.HandlerFunc(func(context.Context, webhook.Request) webhook.Response { return webhook.Allowed("") })
	response := newLedger(c).After(passed).Handle(t.Context(), requestOf(t, "ResourceClaim", claimOf("a", "20Gi")))
	if want := []string{"not checked against the namespace's ShareQuotas: ShareQuota team-a/team-a: etcd is away"}; !response.Allowed || !slices.Equal(response.Warnings, want) {
		t.Errorf("allowed %t with warnings %q", response.Allowed, response.Warnings)
	}
}
