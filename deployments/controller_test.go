package deployments

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionapi "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestControllersRightsAreTheLeast(t *testing.T) {
	objects := part(decode(t, mustTemplate(t)), true)
	sameRights(t, only[*rbacv1.ClusterRole](t, objects).Rules, map[string]string{
		"resource.k8s.io/deviceclasses":                                           "list watch",
		"resource.k8s.io/resourceslices":                                          "list watch",
		"resource.k8s.io/resourceclaims":                                          "list watch",
		"gpu.aliquot.dev/sharequotas":                                             "get list watch",
		"gpu.aliquot.dev/sharequotas/status":                                      "update",
		"events.k8s.io/events":                                                    "create patch",
		"admissionregistration.k8s.io/validatingwebhookconfigurations":            "list watch",
		"admissionregistration.k8s.io/mutatingwebhookconfigurations":              "list watch",
		"admissionregistration.k8s.io/validatingwebhookconfigurations/" + release: "update",
		"admissionregistration.k8s.io/mutatingwebhookconfigurations/" + release:   "update",
	})
	sameRights(t, only[*rbacv1.Role](t, objects).Rules, map[string]string{
		"coordination.k8s.io/leases":                            "create",
		"coordination.k8s.io/leases/" + release + "-controller": "get update",
		"/events":  "create",
		"/secrets": "list watch",
		"/secrets/" + release + "-controller-certificates": "update",
	})
	binding := only[*rbacv1.RoleBinding](t, objects)
	pod := only[*appsv1.Deployment](t, objects).Spec.Template.Spec
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: pod.ServiceAccountName, Namespace: binding.Namespace}}
	if diff := cmp.Diff(want, binding.Subjects); diff != "" {
		t.Errorf("subjects (-Deployment +RoleBinding):\n%s", diff)
	}
	if diff := cmp.Diff(want, only[*rbacv1.ClusterRoleBinding](t, objects).Subjects); diff != "" {
		t.Errorf("subjects (-Deployment +ClusterRoleBinding):\n%s", diff)
	}
}

// What Pod Security Admission calls restricted, and a root filesystem that nothing is written to.
func TestControllerIsRestricted(t *testing.T) {
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			pod := only[*appsv1.Deployment](t, decode(t, mustTemplate(t, r.args...))).Spec.Template.Spec
			container, inPod := pod.Containers[0].SecurityContext, pod.SecurityContext
			got := map[string]bool{
				"runAsNonRoot":             *inPod.RunAsNonRoot && *inPod.RunAsUser != 0,
				"seccompProfile":           inPod.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
				"allowPrivilegeEscalation": !*container.AllowPrivilegeEscalation,
				"readOnlyRootFilesystem":   *container.ReadOnlyRootFilesystem,
				"capabilities":             slices.Equal(container.Capabilities.Drop, []corev1.Capability{"ALL"}) && container.Capabilities.Add == nil,
				"host namespaces":          !pod.HostPID && !pod.HostIPC && !pod.HostNetwork,
			}
			for name, restricted := range got {
				if !restricted {
					t.Errorf("%s is not restricted", name)
				}
			}
			for _, v := range pod.Volumes {
				if v.HostPath != nil {
					t.Errorf("volume %s is of the host", v.Name)
				}
			}
		})
	}
}

// A webhook whose Service selects nothing, or whose configuration the controller does not know, never answers.
func TestWebhooksReachTheController(t *testing.T) {
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			objects := decode(t, mustTemplate(t, r.args...))
			deployment := only[*appsv1.Deployment](t, objects)
			services := slices.DeleteFunc(all[*corev1.Service](objects), func(s *corev1.Service) bool { return s.Name != deployment.Name })
			if len(services) != 1 {
				t.Fatalf("%d services are named like the Deployment", len(services))
			}
			for key, value := range services[0].Spec.Selector {
				if deployment.Spec.Template.Labels[key] != value || deployment.Spec.Selector.MatchLabels[key] != value {
					t.Errorf("label %s of the pods is not %q", key, value)
				}
			}
			args := strings.Join(deployment.Spec.Template.Spec.Containers[0].Args, "\n") + "\n"
			for flag, name := range map[string]string{
				"service":            services[0].Name,
				"validating-webhook": only[*admissionapi.ValidatingWebhookConfiguration](t, objects).Name,
				"mutating-webhook":   only[*admissionapi.MutatingWebhookConfiguration](t, objects).Name,
			} {
				if !strings.Contains(args, "--"+flag+"="+name+"\n") {
					t.Errorf("--%s is not %s", flag, name)
				}
			}
			for _, w := range webhooks(t, objects) {
				if w.Service == nil || w.Service.Name != services[0].Name || w.Service.Namespace != services[0].Namespace {
					t.Errorf("a webhook calls %v", w.Service)
				}
			}
			if budget := only[*policyv1.PodDisruptionBudget](t, objects); !cmp.Equal(budget.Spec.Selector, deployment.Spec.Selector) {
				t.Error("the disruption budget is of other pods")
			}
		})
	}
}

func webhooks(t *testing.T, objects []runtime.Object) []admissionapi.WebhookClientConfig {
	t.Helper()
	var configs []admissionapi.WebhookClientConfig
	for _, w := range only[*admissionapi.ValidatingWebhookConfiguration](t, objects).Webhooks {
		configs = append(configs, w.ClientConfig)
	}
	for _, w := range only[*admissionapi.MutatingWebhookConfiguration](t, objects).Webhooks {
		configs = append(configs, w.ClientConfig)
	}
	return configs
}

func TestControllerCanBeLeftOut(t *testing.T) {
	if left := part(decode(t, mustTemplate(t, "--set", "controller.enabled=false")), true); len(left) > 0 {
		t.Errorf("%d objects of the controller are left", len(left))
	}
}
